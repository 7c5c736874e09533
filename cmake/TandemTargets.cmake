# One static library a folder; sources are listed, never globbed.
#   tandem_library(NAME tandem_kv_cache SRCS block_pool.cc DEPS tandem_base absl::status)
function(tandem_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(${ARG_NAME} STATIC ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PUBLIC tandem_options ${ARG_DEPS})
endfunction()

#   tandem_executable(NAME tandem SRCS main.cc DEPS tandem_base)   (installed)
function(tandem_executable)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE tandem_options ${ARG_DEPS})
  install(TARGETS ${ARG_NAME} RUNTIME DESTINATION bin)
endfunction()

#   tandem_test(NAME block_pool_test SRCS block_pool_test.cc DEPS tandem_kv_cache [STAGES asan]
#               [TIMEOUT seconds])
# One ctest entry a binary. STAGES are those of tools/test that build and run it, of release, asan and
# tsan: each is a ctest label and a target, STAGE_tests. The default is the folder's TANDEM_TEST_STAGES.
# `all` has those of the stage release.
foreach(stage IN ITEMS release asan tsan)
  add_custom_target(${stage}_tests)
endforeach()
function(tandem_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SRCS;DEPS;STAGES" ${ARGN})
  if(NOT ARG_STAGES)
    set(ARG_STAGES ${TANDEM_TEST_STAGES})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  # Each file has helpers of its own, by the names that fit.
  set_target_properties(${ARG_NAME} PROPERTIES UNITY_BUILD OFF
                        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${ARG_NAME} PRIVATE tandem_options ${ARG_DEPS} GTest::gmock_main)
  # What the tests themselves do costs far less time than compiling them.
  target_compile_options(${ARG_NAME} PRIVATE -Og)
  target_compile_definitions(${ARG_NAME} PRIVATE TANDEM_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
    TANDEM_BINARY_DIR="${CMAKE_BINARY_DIR}/bin")
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_STAGES}" TIMEOUT ${ARG_TIMEOUT})
  if(NOT "release" IN_LIST ARG_STAGES)
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  foreach(stage IN LISTS ARG_STAGES)
    add_dependencies(${stage}_tests ${ARG_NAME})
  endforeach()
endfunction()

#   tandem_bench(NAME block_pool_bench SRCS block_pool_bench.cc DEPS tandem_kv_cache)
function(tandem_bench)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} EXCLUDE_FROM_ALL ${ARG_SRCS})
  set_target_properties(${ARG_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(${ARG_NAME} PRIVATE tandem_options ${ARG_DEPS} benchmark::benchmark)
endfunction()
