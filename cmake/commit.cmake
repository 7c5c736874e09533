# Writes the source OUTPUT, which has the commit of the checkout SOURCE_DIR, unless it has it already.
# Empty where that is no checkout of its own, a tarball's say, or git is not there.
#   cmake -DSOURCE_DIR=… -DOUTPUT=… -P commit.cmake
cmake_minimum_required(VERSION 3.25)

function(ask_git result)
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE_DIR} ${ARGN}
                  OUTPUT_VARIABLE said ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed)
    set(said "")
  endif()
  set(${result} "${said}" PARENT_SCOPE)
endfunction()

set(commit "")
ask_git(top rev-parse --show-toplevel)
file(REAL_PATH "${SOURCE_DIR}" source)
if(top STREQUAL source)
  ask_git(commit describe --always --dirty --abbrev=12 --exclude=*)
endif()
# As file(CONFIGURE) leaves what is the same as it is.
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT
     "namespace tandem {\nextern const char kCommit[];\nconst char kCommit[] = \"@commit@\";\n}\n")
