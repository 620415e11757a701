// Frames in one buffer, and the header's envelope around the body.
#pragma once

#include "value.hpp"

namespace omniwire {

std::vector<Bytes> split(Bytes blob);                        // refuses what is no one-buffer form
std::string join(const std::vector<std::string>& frames);

struct Envelope {
    unsigned version;
    Bytes body;
};
Envelope open(Bytes header);
std::string close(Bytes body);

}  // namespace omniwire
