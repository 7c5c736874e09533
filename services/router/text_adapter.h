// The text crate's detokenizer as the request owner calls it.

#ifndef TANDEM_SERVICES_ROUTER_TEXT_ADAPTER_H_
#define TANDEM_SERVICES_ROUTER_TEXT_ADAPTER_H_

#include <cstdint>
#include <vector>

#include "runtime/request/request_owner.h"
#include "runtime/text/tokenizer.h"

namespace tandem {

// Each made detokenizer follows `prompt`. `tokenizer` outlives them all. Null for no tokenizer.
DetokenizerFactory MakeDetokenizerFactory(const Tokenizer* tokenizer, std::vector<int32_t> prompt,
                                          bool skip_special_tokens);

}  // namespace tandem

#endif  // TANDEM_SERVICES_ROUTER_TEXT_ADAPTER_H_
