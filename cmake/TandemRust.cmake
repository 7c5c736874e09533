# Rust crates as static libraries. cargo and rustc of any origin: Ubuntu 24.04 has each version that
# is new enough in a folder of its own, which is on nobody's PATH.
function(tandem_cargo_is_new result candidate)
  execute_process(COMMAND ${candidate} --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "[0-9]+\\.[0-9]+" version "${text}")
  if(NOT version VERSION_GREATER_EQUAL 1.80)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()
file(GLOB TANDEM_RUST_FOLDERS /usr/lib/rust-1.*/bin)
find_program(CARGO_PROGRAM cargo PATHS ${TANDEM_RUST_FOLDERS} VALIDATOR tandem_cargo_is_new REQUIRED)
cmake_path(GET CARGO_PROGRAM PARENT_PATH TANDEM_CARGO_FOLDER)

# A crate's build does not depend on the preset (it has no sanitizers), so that the presets of a
# source tree share one folder.
cmake_path(IS_PREFIX CMAKE_SOURCE_DIR ${CMAKE_BINARY_DIR} NORMALIZE TANDEM_BUILDS_IN_SOURCE)
if(TANDEM_BUILDS_IN_SOURCE)
  set(TANDEM_RUST_DEFAULT ${CMAKE_SOURCE_DIR}/build/rust)
else()
  set(TANDEM_RUST_DEFAULT ${CMAKE_BINARY_DIR}/rust)
endif()
set(TANDEM_RUST_DIR ${TANDEM_RUST_DEFAULT} CACHE PATH "Where cargo builds")

#   tandem_rust_library(NAME tandem_text_rust CRATE tandem_text DIR rust SRCS rust/src/lib.rs)
# Runs cargo when a source, Cargo.toml or Cargo.lock has changed. The crates are those of the
# committed Cargo.lock, fetched from crates.io the first time.
function(tandem_rust_library)
  cmake_parse_arguments(ARG "" "NAME;CRATE;DIR" "SRCS" ${ARGN})
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_DIR})
  set(library ${CMAKE_CURRENT_BINARY_DIR}/${ARG_DIR}/lib${ARG_CRATE}.a)
  list(TRANSFORM ARG_SRCS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  add_custom_command(
    OUTPUT ${library}
    # With the rustc that lies beside it.
    COMMAND ${CMAKE_COMMAND} -E env --modify PATH=path_list_prepend:${TANDEM_CARGO_FOLDER}
            ${CARGO_PROGRAM} build --release --locked --quiet --manifest-path ${folder}/Cargo.toml
            --target-dir ${TANDEM_RUST_DIR}
    COMMAND ${CMAKE_COMMAND} -E copy ${TANDEM_RUST_DIR}/release/lib${ARG_CRATE}.a ${library}
    DEPENDS ${ARG_SRCS} ${folder}/Cargo.toml ${folder}/Cargo.lock
    COMMENT "Building Rust crate ${ARG_CRATE}"
    VERBATIM)
  add_custom_target(${ARG_NAME}_build DEPENDS ${library})
  add_library(${ARG_NAME} STATIC IMPORTED GLOBAL)
  set_target_properties(${ARG_NAME} PROPERTIES IMPORTED_LOCATION ${library})
  target_link_libraries(${ARG_NAME} INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
  add_dependencies(${ARG_NAME} ${ARG_NAME}_build)
endfunction()
