# tandem_commit: the one object that a commit makes anew. Programs have it, libraries and tests do not, so
# that nothing else is linked again.
set(TANDEM_COMMIT_SOURCE ${CMAKE_BINARY_DIR}/generated/commit.cc)
add_custom_target(
  tandem_commit_source
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${CMAKE_SOURCE_DIR} -DOUTPUT=${TANDEM_COMMIT_SOURCE} -P ${CMAKE_SOURCE_DIR}/cmake/commit.cmake
  BYPRODUCTS ${TANDEM_COMMIT_SOURCE}
  COMMENT "Asking for the commit"
  VERBATIM)
add_library(tandem_commit OBJECT ${TANDEM_COMMIT_SOURCE})
target_link_libraries(tandem_commit PRIVATE tandem_options)
add_dependencies(tandem_commit tandem_commit_source)
