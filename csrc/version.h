#pragma once
#include <string>

namespace gofsdp {

// The version of the libtorch in this process, such as 2.13.0.
std::string running_version();

}  // namespace gofsdp
