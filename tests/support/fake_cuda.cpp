// A CUDA driver with one allocation on each of two devices, for `test_cuda_driver.py`.
// Types and signatures as in <cuda.h>; whatever breaks its rules is an error.
#include <cstddef>
#include <cstdint>

namespace {

constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr std::uint64_t kBase = 0x7fab00000000;
constexpr std::uint64_t kSize = 0x300000000;
constexpr int kDepth = 8;

struct Context {
  int device;
};

struct MemHandle {
  unsigned char reserved[64];
};

Context contexts[2] = {{0}, {1}};
Context* stack[kDepth];
int depth = 0;
int num_open = 0;

bool has_context() { return depth > 0; }

}  // namespace

extern "C" {

int num_retained = 0;
int capture_mode = 0;

int current_depth() { return depth; }
int open_count() { return num_open; }

int cuGetErrorName(int error, const char** name) {
  *name = error == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE" : nullptr;
  return *name == nullptr ? kInvalidValue : 0;
}

int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal > 1) return 101;
  *device = ordinal + 5;
  return 0;
}

int cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (device != 5 && device != 6) return kInvalidValue;
  ++num_retained;
  *context = &contexts[device - 5];
  return 0;
}

int cuCtxPushCurrent_v2(Context* context) {
  if (context != &contexts[0] && context != &contexts[1]) return kInvalidContext;
  if (depth == kDepth) return kInvalidValue;
  stack[depth++] = context;
  return 0;
}

int cuCtxPopCurrent_v2(Context** context) {
  if (!has_context()) return kInvalidContext;
  *context = stack[--depth];
  return 0;
}

int cuMemGetAddressRange_v2(std::uint64_t* base, std::size_t* size, std::uint64_t address) {
  if (!has_context()) return kInvalidContext;
  if (address < kBase || address >= kBase + kSize) return kInvalidValue;
  *base = kBase;
  *size = kSize;
  return 0;
}

int cuIpcGetMemHandle(MemHandle* handle, std::uint64_t address) {
  if (!has_context()) return kInvalidContext;
  if (address != kBase) return kInvalidValue;
  for (int i = 0; i < 64; ++i) handle->reserved[i] = i % 3 == 0 ? 0 : i;
  return 0;
}

int cuIpcOpenMemHandle_v2(std::uint64_t* address, MemHandle handle, unsigned int flags) {
  if (!has_context()) return kInvalidContext;
  if (flags != 1) return kInvalidValue;
  for (int i = 0; i < 64; ++i) {
    if (handle.reserved[i] != (i % 3 == 0 ? 0 : i)) return kInvalidValue;
  }
  ++num_open;
  *address = kBase;
  return 0;
}

int cuIpcCloseMemHandle(std::uint64_t address) {
  if (!has_context()) return kInvalidContext;
  if (address != kBase || num_open == 0) return kInvalidValue;
  --num_open;
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  int previous = capture_mode;
  capture_mode = *mode;
  *mode = previous;
  return 0;
}

}  // extern "C"
