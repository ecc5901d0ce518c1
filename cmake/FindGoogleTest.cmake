# Defines the target gtest_main from GoogleTest's pinned source, which is kept in the user's cache: a second clone, or a
# second build folder, downloads nothing. Sets GOFSDP_GTEST to whether it could be had; building the library needs none.
#
# FETCHCONTENT_SOURCE_DIR_GOOGLETEST=<folder> takes a source that is there already, e.g. /usr/src/googletest of Debian's
# package.
include(FetchContent)
if(POLICY CMP0135)
  cmake_policy(SET CMP0135 NEW) # unpacked files are as old as their unpacking
endif()

set(gtest_version 1.17.0)
set(gtest_sha256 3dc65ed118d82feb8276176354568e66acefee362d2b615e798bdd6c656377ff)
# The same file, byte for byte, at each of them.
set(gtest_file googletest_${gtest_version}.orig.tar.gz)
set(gtest_urls
  https://deb.debian.org/debian/pool/main/g/googletest/${gtest_file}
  http://archive.ubuntu.com/ubuntu/pool/universe/g/googletest/${gtest_file})

# gofsdp_fetch(<file> <sha256> <url>...) downloads a file once, under a lock, and moves it into place when its hash is
# right. Sets <file>_ERROR in the caller where none of the addresses has it.
function(gofsdp_fetch file sha256)
  get_filename_component(folder "${file}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  file(LOCK "${file}.lock" GUARD FUNCTION TIMEOUT 300)
  if(EXISTS "${file}")
    file(SHA256 "${file}" have)
    if(have STREQUAL sha256)
      return()
    endif()
  endif()
  foreach(url ${ARGN})
    file(DOWNLOAD "${url}" "${file}.part" STATUS status TIMEOUT 120 INACTIVITY_TIMEOUT 30)
    list(GET status 0 code)
    if(code EQUAL 0)
      file(SHA256 "${file}.part" have)
      if(have STREQUAL sha256)
        file(RENAME "${file}.part" "${file}")
        return()
      endif()
      set(status "1;its SHA-256 is ${have}, want ${sha256}")
    endif()
    list(GET status 1 reason)
    string(APPEND errors "\n  ${url}: ${reason}")
  endforeach()
  file(REMOVE "${file}.part")
  set(${file}_ERROR "${errors}" PARENT_SCOPE)
endfunction()

set(GOFSDP_GTEST ON)
if(FETCHCONTENT_SOURCE_DIR_GOOGLETEST)
  FetchContent_Declare(googletest)
else()
  set(gtest_tarball "${GOFSDP_CACHE}/sources/googletest-${gtest_version}.tar.gz")
  gofsdp_fetch("${gtest_tarball}" ${gtest_sha256} ${gtest_urls})
  if(DEFINED ${gtest_tarball}_ERROR)
    set(GOFSDP_GTEST OFF)
    message(WARNING "no GoogleTest, so no C++ tests can be built (the library can):${${gtest_tarball}_ERROR}")
    return()
  endif()
  FetchContent_Declare(googletest URL "${gtest_tarball}" URL_HASH SHA256=${gtest_sha256})
endif()

set(BUILD_GMOCK OFF CACHE BOOL "" FORCE)
set(INSTALL_GTEST OFF CACHE BOOL "" FORCE)
FetchContent_MakeAvailable(googletest)
set_target_properties(gtest gtest_main PROPERTIES EXCLUDE_FROM_ALL ON)
