# Reads the symbols of the kernel and sampling libraries (NM, and LIBRARIES separated by commas) and
# fails if one calls the C library's floating-point functions, whose bits differ between machines; or
# if an object compiled for an instruction set defines a symbol that the linker could share with code
# for older machines.

# What <math.h> declares for real numbers, with f and l variants, finite and vector ones.
set(functions
    acos acosh asin asinh atan atan2 atanh cbrt cos cosh erf erfc exp exp10 exp2 expm1 fma fmod hypot
    ldexp lgamma log log10 log1p log2 logb nearbyint pow remainder rint round roundeven scalbn sin
    sincos sinh sqrt tan tanh tgamma trunc ceil floor)
list(JOIN functions "|" alternatives)
set(banned " U (_ZGV[A-Za-z0-9]+_)?_*(${alternatives})[fl]?(_finite|_ifunc)?(@.*)?$")

string(REPLACE "," ";" libraries "${LIBRARIES}")
set(num_objects 0)
foreach(library IN LISTS libraries)
  execute_process(COMMAND ${NM} ${library} OUTPUT_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${NM} ${library} failed")
  endif()
  string(REPLACE "\n" ";" lines "${output}")
  set(object "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^(.*\\.o):$")
      set(object ${CMAKE_MATCH_1})
      math(EXPR num_objects "${num_objects} + 1")
    elseif(line MATCHES "${banned}")
      message(FATAL_ERROR "${object} calls the C library: ${line}")
    elseif(object MATCHES "kernels_(amx|avx|neon)|row_math_avx" AND line MATCHES " [WVu] ")
      message(FATAL_ERROR "${object} defines a symbol that older machines could get: ${line}")
    endif()
  endforeach()
endforeach()
if(num_objects LESS 10)
  message(FATAL_ERROR "only ${num_objects} objects seen: is ${LIBRARIES} right?")
endif()

# The pattern must see what it bans.
foreach(line "                 U expf" "                 U exp@GLIBC_2.29" "                 U _ZGVbN4v_sinf"
             "                 U sqrtf" "                 U __expf_finite")
  if(NOT line MATCHES "${banned}")
    message(FATAL_ERROR "the ban does not see \"${line}\"")
  endif()
endforeach()
message(STATUS "${num_objects} objects call no floating-point function of the C library")
