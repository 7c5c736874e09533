// Numbers in messages: what somebody gave, and not what six digits make of it.

#ifndef TANDEM_RUNTIME_BASE_NUMBER_TEXT_H_
#define TANDEM_RUNTIME_BASE_NUMBER_TEXT_H_

#include <string>

namespace tandem {

// The shortest that is read as this number again; of a float, as this float: "100.0001", "1e+308",
// "0.7", "nan".
std::string NumberText(double value);

}  // namespace tandem

#endif  // TANDEM_RUNTIME_BASE_NUMBER_TEXT_H_
