// Messages in one-buffer form: read, written, shown.
#pragma once

#include "value.hpp"

namespace omniwire {

Value read(Bytes blob);  // what it returns points into `blob`
std::string write(const Value& object);
std::string show(const Value& object);  // as JSON

void check(const Value& object);  // the rules of one record; throws Refusal
bool is_tensor(const Value& value);  // or a handle of one

}  // namespace omniwire
