#include "envelope.hpp"

#include <array>

#include "tables.hpp"

namespace omniwire {
namespace {

constexpr Bytes magic("\x95\xa8omniwire", 10);
constexpr Bytes blob_magic("omniblob", 8);
constexpr std::size_t head_size = 26;

std::size_t align(std::size_t offset) { return (offset + alignment - 1) / alignment * alignment; }

std::uint64_t big(Bytes bytes) {
    std::uint64_t number = 0;
    for (char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
    return number;
}
std::string big(std::uint64_t number, int size) {
    std::string bytes;
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
    return bytes;
}
std::uint64_t little(Bytes bytes) {
    std::uint64_t number = 0;
    for (auto byte = bytes.rbegin(); byte != bytes.rend(); ++byte)
        number = number << 8 | static_cast<unsigned char>(*byte);
    return number;
}
std::string little(std::uint64_t number) {
    std::string bytes = big(number, 8);
    return {bytes.rbegin(), bytes.rend()};
}

std::uint32_t crc32(Bytes bytes) {
    std::uint32_t crc = ~0U;
    for (char byte : bytes) {
        crc ^= static_cast<unsigned char>(byte);
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320U : 0U);
    }
    return ~crc;
}

}  // namespace

std::vector<Bytes> split(Bytes blob) {
    if (blob.substr(0, 8) != blob_magic.substr(0, blob.size())) throw Refusal("magic", "no omniblob");
    if (blob.size() < 16) throw Refusal("truncated", "no number of frames");
    const std::uint64_t count = little(blob.substr(8, 8));
    if (count == 0) throw Refusal("frames", "no frames");
    if (count > (blob.size() - 16) / 8) throw Refusal("truncated", "table of frames");
    std::size_t end = 16 + 8 * count;
    std::vector<Bytes> frames;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t size = little(blob.substr(16 + 8 * i, 8));
        const std::size_t start = align(end);
        if (start > blob.size() || size > blob.size() - start) throw Refusal("truncated", "frame");
        for (char byte : blob.substr(end, start - end))
            if (byte != 0) throw Refusal("syntax", "padding is not zero");
        frames.push_back(blob.substr(start, size));
        end = start + size;
    }
    if (end != blob.size()) throw Refusal("frames", "bytes after the last frame");
    return frames;
}

std::string join(const std::vector<std::string>& frames) {
    std::string blob = std::string(blob_magic) + little(frames.size());
    for (const auto& frame : frames) blob += little(frame.size());
    for (const auto& frame : frames) {
        blob.resize(align(blob.size()));
        blob += frame;
    }
    return blob;
}

Envelope open(Bytes header) {
    if (header.substr(0, magic.size()) != magic.substr(0, header.size())) throw Refusal("magic", "no omniwire");
    if (header.size() < head_size) throw Refusal("truncated", "header");
    const auto is = [&](std::size_t at, int byte) { return static_cast<unsigned char>(header[at]) == byte; };
    if (!is(10, 0xcd) || !is(13, 0xcd) || !is(16, 0xce) || !is(21, 0xc6))
        throw Refusal("syntax", "fixed encodings");
    const std::uint64_t version = big(header.substr(11, 2)), oldest = big(header.substr(14, 2));
    if (oldest > newest_version) throw Refusal("version", "needs version " + std::to_string(oldest));
    if (oldest < 1 || oldest > version) throw Refusal("range", "versions");
    const std::uint64_t size = big(header.substr(22, 4));
    const Bytes body = header.substr(head_size);
    if (size > body.size()) throw Refusal("truncated", "body");
    if (size < body.size()) throw Refusal("syntax", "bytes after the body");
    if (crc32(body) != big(header.substr(17, 4))) throw Refusal("checksum", "body");
    return {static_cast<unsigned>(version), body};
}

std::string close(Bytes body) {
    std::string header(magic);
    header += '\xcd' + big(newest_version, 2) + '\xcd' + big(1, 2);
    header += '\xce' + big(crc32(body), 4) + '\xc6' + big(body.size(), 4);
    return header.append(body);
}

}  // namespace omniwire
