// Status propagation: return early, or assign a StatusOr's value.
//
//   TANDEM_RETURN_IF_ERROR(pool->Reserve(n));
//   TANDEM_ASSIGN_OR_RETURN(BlockTable table, pool->Allocate(n));

#ifndef TANDEM_RUNTIME_BASE_STATUS_MACROS_H_
#define TANDEM_RUNTIME_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TANDEM_RETURN_IF_ERROR(expression)                                  \
  do {                                                                      \
    if (absl::Status tandem_status_ = (expression); !tandem_status_.ok()) { \
      return tandem_status_;                                                \
    }                                                                       \
  } while (false)

#define TANDEM_ASSIGN_OR_RETURN(declaration, expression) \
  TANDEM_ASSIGN_OR_RETURN_NAMED_(TANDEM_JOIN_(tandem_status_or_, __LINE__), declaration, expression)

#define TANDEM_JOIN_INNER_(a, b) a##b
#define TANDEM_JOIN_(a, b) TANDEM_JOIN_INNER_(a, b)
#define TANDEM_ASSIGN_OR_RETURN_NAMED_(name, declaration, expression) \
  auto name = (expression);                                           \
  if (!name.ok()) return std::move(name).status();                    \
  declaration = *std::move(name)

#endif  // TANDEM_RUNTIME_BASE_STATUS_MACROS_H_
