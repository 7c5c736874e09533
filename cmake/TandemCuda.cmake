# With TANDEM_CUDA: NVIDIA's compiler and runtime, of an installed CUDA 13 or of tools/dev/cuda_toolkit,
# which assembles one in build/toolkit. Without it nothing of ours knows of CUDA.
option(TANDEM_CUDA "Build the backend of NVIDIA's GPUs" OFF)
if(NOT TANDEM_CUDA)
  return()
endif()

find_program(TANDEM_NVCC nvcc PATHS ${CMAKE_SOURCE_DIR}/build/toolkit/bin /usr/local/cuda/bin
             NO_DEFAULT_PATH)
find_program(TANDEM_NVCC nvcc)
if(NOT TANDEM_NVCC)
  message(FATAL_ERROR "TANDEM_CUDA needs CUDA 13: install it, or run tools/dev/cuda_toolkit")
endif()
cmake_path(GET TANDEM_NVCC PARENT_PATH TANDEM_CUDA_ROOT)
cmake_path(GET TANDEM_CUDA_ROOT PARENT_PATH TANDEM_CUDA_ROOT)

# Machine code for what we know, and PTX, which later GPUs' drivers compile.
set(TANDEM_CUDA_ARCHITECTURES "80-real;89-real;90a-real;90-virtual"
    CACHE STRING "GPUs to build kernels for, as CMAKE_CUDA_ARCHITECTURES")
set(CMAKE_CUDA_ARCHITECTURES ${TANDEM_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_COMPILER ${TANDEM_NVCC})
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # Linked below.
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
# For people: "13.0 for sm_80 sm_90a compute_90".
string(REGEX MATCH "^[0-9]+\\.[0-9]+" TANDEM_CUDA_TEXT "${CMAKE_CUDA_COMPILER_VERSION}")
list(JOIN TANDEM_CUDA_ARCHITECTURES " " architectures)
string(REGEX REPLACE "([0-9]+[a-z]?)-real" "sm_\\1" architectures "${architectures}")
string(REGEX REPLACE "([0-9]+[a-z]?)-virtual" "compute_\\1" architectures "${architectures}")
string(APPEND TANDEM_CUDA_TEXT " for ${architectures}")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know what this nvcc can do.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

add_library(tandem_cudart INTERFACE)
target_include_directories(tandem_cudart SYSTEM INTERFACE ${TANDEM_CUDA_ROOT}/include)
find_library(TANDEM_CUDART cudart_static PATHS ${TANDEM_CUDA_ROOT}/lib ${TANDEM_CUDA_ROOT}/lib64
             NO_DEFAULT_PATH REQUIRED)
target_link_libraries(tandem_cudart INTERFACE ${TANDEM_CUDART} Threads::Threads ${CMAKE_DL_LIBS} rt)
# Numbers as docs/numerics.md has them: nothing contracted, denormals flushed (but in a target whose
# property TANDEM_KEEPS_DENORMALS is on), divisions and roots rounded once.
target_compile_options(tandem_cudart INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--expt-relaxed-constexpr --fmad=false -prec-div=true>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-ftz=$<IF:$<BOOL:$<TARGET_PROPERTY:TANDEM_KEEPS_DENORMALS>>,false,true>>"
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-prec-sqrt=true --compress-mode=size>"
  "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${TANDEM_WERROR}>>:SHELL:-Werror all-warnings>")

# NCCL, which the transport of that name needs and nothing else. Where there is none it is refused.
find_library(TANDEM_NCCL NAMES nccl PATHS ${TANDEM_CUDA_ROOT}/lib ${TANDEM_CUDA_ROOT}/lib64)
find_path(TANDEM_NCCL_INCLUDE nccl.h PATHS ${TANDEM_CUDA_ROOT}/include)
message(STATUS "NCCL (--transport nccl): ${TANDEM_NCCL}")
if(TANDEM_NCCL AND TANDEM_NCCL_INCLUDE)
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${TANDEM_NCCL_INCLUDE}/nccl.h line REGEX "^#define NCCL_${part} +[0-9]+")
    string(REGEX MATCH "[0-9]+$" number "${line}")
    list(APPEND TANDEM_NCCL_TEXT ${number})
  endforeach()
  list(JOIN TANDEM_NCCL_TEXT "." TANDEM_NCCL_TEXT)
  add_library(tandem_nccl INTERFACE)
  target_include_directories(tandem_nccl SYSTEM INTERFACE ${TANDEM_NCCL_INCLUDE})
  target_link_libraries(tandem_nccl INTERFACE ${TANDEM_NCCL} tandem_cudart)
endif()
