// The body as a tree of values, before anything is known about records.
#pragma once

#include "value.hpp"

namespace omniwire {

// The bytes of a tensor that is not inline.
struct Place {
    std::uint64_t buffer, offset, size;
};
struct Tree {
    Value root;  // arrays are tuples, maps mappings, extensions what they stand for
    std::vector<Place> places;
};
// `frames` are those of the whole message. A place outside its buffer is left to the caller.
// Extensions that this version does not have are refused unless the writer is newer.
Tree parse(Bytes body, const std::vector<Bytes>& frames, bool newer);

}  // namespace omniwire
