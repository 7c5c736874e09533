set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # base_dir and hash_dir let checkouts in different folders share one cache.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

option(TANDEM_WERROR "Warnings are errors (the presets, so ./tools/test, set it)" OFF)
option(TANDEM_UNITY "Compile the product's sources four at a time: their headers take longer" OFF)
if(TANDEM_UNITY)
  set(CMAKE_UNITY_BUILD ON)
  set(CMAKE_UNITY_BUILD_BATCH_SIZE 4)
endif()
option(TANDEM_SANITIZE_EMULATED "With the address sanitizer: build the emulated GPU, too (./tools/test --full)" OFF)
set(TANDEM_SANITIZE "" CACHE STRING "address,undefined or thread; empty for none")

# What every source of ours is compiled with. -ffp-contract=off is part of docs/numerics.md.
add_library(tandem_options INTERFACE)
set(for_cxx $<NOT:$<COMPILE_LANGUAGE:CUDA>>)  # nvcc has other options
set(warnings
  -Wall -Wextra -Wnon-virtual-dtor -Wshadow -Wno-unused-parameter
  -Wno-missing-field-initializers $<$<BOOL:${TANDEM_WERROR}>:-Werror>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False positives inside std::string and std::variant at -O2 (GCC 12).
  list(APPEND warnings -Wno-restrict -Wno-maybe-uninitialized)
endif()
set(common -ffp-contract=off -fno-math-errno -fstack-protector-strong -fno-omit-frame-pointer)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  list(APPEND common -fsigned-char)  # A char has a sign, as on x86, where everything is tested.
endif()
target_compile_options(tandem_options INTERFACE "$<${for_cxx}:${warnings};${common}>")
if(TANDEM_CUDA)  # nvcc hands them to the host's compiler.
  target_compile_options(tandem_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=$<JOIN:${warnings};${common},$<COMMA>>>")
endif()
target_link_options(tandem_options INTERFACE -Wl,-z,relro,-z,now)
if(TANDEM_SANITIZE)
  target_compile_options(tandem_options INTERFACE -fsanitize=${TANDEM_SANITIZE}
    -fno-sanitize-recover=all -O1 -g1)
  if(TANDEM_SANITIZE MATCHES "address")
    # The installed Abseil was built without a sanitizer. So its hash tables must not be laid out for
    # one, nor what is free in them be marked (allow_user_poisoning=0 where tests run).
    target_compile_definitions(tandem_options INTERFACE NDEBUG_SANITIZER)
  endif()
  if(TANDEM_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # ASan sees what these find where it is used; checks inline, and these beside them, make gcc three
    # times as slow. With the first three of them, from gcc 13 on, "this function is not null" is no
    # constant, which Abseil needs. clang's builds (the fuzzers) have them all. Frames that outlive their
    # functions, from gcc 13 on the default, are aligned for no vector of 64 bytes.
    target_compile_options(tandem_options INTERFACE
      -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute,object-size,vptr
      -fno-sanitize=pointer-overflow,alignment
      "SHELL:--param asan-instrumentation-with-call-threshold=0"
      "SHELL:--param asan-use-after-return=0")
  endif()
  target_link_options(tandem_options INTERFACE -fsanitize=${TANDEM_SANITIZE})
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(tandem_options INTERFACE "$<${for_cxx}:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
endif()
target_include_directories(tandem_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_definitions(tandem_options INTERFACE TANDEM_VERSION="${PROJECT_VERSION}")
