# Finds libtorch and defines the target gofsdp_torch: its headers, libtorch_cpu and libc10.
#
# GOFSDP_TORCH_DIR is a folder that holds include/ and lib/: the `torch` folder of a Python installation, an
# unpacked libtorch, or (the default) the one that `gofsdp setup` used last, which it notes in the user's cache.
if(NOT GOFSDP_TORCH_DIR AND DEFINED ENV{GOFSDP_TORCH_DIR})
  set(GOFSDP_TORCH_DIR "$ENV{GOFSDP_TORCH_DIR}")
endif()
if(NOT GOFSDP_TORCH_DIR)
  set(GOFSDP_TORCH_DIR "${GOFSDP_CACHE}/libtorch/2.13.0/torch")
  if(EXISTS "${GOFSDP_CACHE}/setup.json")
    file(READ "${GOFSDP_CACHE}/setup.json" state)
    string(JSON torch_dir ERROR_VARIABLE no_torch_dir GET "${state}" torch_dir)
    if(NOT no_torch_dir AND IS_DIRECTORY "${torch_dir}")
      set(GOFSDP_TORCH_DIR "${torch_dir}")
    endif()
  endif()
endif()
get_filename_component(GOFSDP_TORCH_DIR "${GOFSDP_TORCH_DIR}" ABSOLUTE)
set(GOFSDP_TORCH_DIR "${GOFSDP_TORCH_DIR}" CACHE PATH "folder with libtorch's include/ and lib/" FORCE)

set(version_header "${GOFSDP_TORCH_DIR}/include/torch/headeronly/version.h")
if(NOT EXISTS "${version_header}")
  set(version_header "${GOFSDP_TORCH_DIR}/include/torch/csrc/api/include/torch/version.h")
endif()
if(NOT EXISTS "${version_header}")
  message(FATAL_ERROR
    "no libtorch in ${GOFSDP_TORCH_DIR} (include/torch/headeronly/version.h is missing).\n"
    "Run `go run ./cmd/gofsdp setup` to download it, or set GOFSDP_TORCH_DIR to one that is installed.")
endif()
file(STRINGS "${version_header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
string(REGEX REPLACE "[^0-9;]" "" GOFSDP_TORCH_VERSION "${lines}")
string(REPLACE ";" "." GOFSDP_TORCH_VERSION "${GOFSDP_TORCH_VERSION}")
if(NOT "$ENV{GOFSDP_IGNORE_TORCH_VERSION}" STREQUAL "1" AND
   (GOFSDP_TORCH_VERSION VERSION_LESS 2.11 OR GOFSDP_TORCH_VERSION VERSION_GREATER_EQUAL 2.14))
  message(FATAL_ERROR "libtorch ${GOFSDP_TORCH_VERSION} in ${GOFSDP_TORCH_DIR}: gofsdp supports 2.11 to 2.13; "
    "set GOFSDP_IGNORE_TORCH_VERSION=1 to try it all the same")
endif()
message(STATUS "libtorch ${GOFSDP_TORCH_VERSION}: ${GOFSDP_TORCH_DIR}")

# By full path, and without CMake's own Torch package: that one looks for CUDA, MKL and a dozen others.
# The OpenMP runtime is libtorch's own: a second one in the process would start a second pool of threads.
file(GLOB openmp "${GOFSDP_TORCH_DIR}/lib/libgomp*.so*")
if(NOT openmp)
  set(openmp -fopenmp)
endif()
add_library(gofsdp_torch INTERFACE)
target_include_directories(gofsdp_torch SYSTEM INTERFACE
  "${GOFSDP_TORCH_DIR}/include" "${GOFSDP_TORCH_DIR}/include/torch/csrc/api/include")
target_compile_definitions(gofsdp_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_link_libraries(gofsdp_torch INTERFACE
  "${GOFSDP_TORCH_DIR}/lib/libtorch_cpu.so" "${GOFSDP_TORCH_DIR}/lib/libc10.so" ${openmp})
# libtorch_cpu.so of a CUDA build needs libcudart and libcupti, which the linker need not see.
target_link_options(gofsdp_torch INTERFACE -Wl,--allow-shlib-undefined
  -Wl,-rpath-link,${GOFSDP_TORCH_DIR}/../nvidia/cu13/lib)
