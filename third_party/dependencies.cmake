# Resolves every dependency but LibTorch: the system's package first, a pinned download second.
# README.md beside this file lists them with licence and reason.
include(FetchContent)

# Makes the dependency `name` available: find_package(name package_arguments...), else the repository at that tag.
function(mha_dependency name repository tag)
  FetchContent_Declare(${name} GIT_REPOSITORY ${repository} GIT_TAG ${tag} GIT_SHALLOW TRUE
                       FIND_PACKAGE_ARGS ${ARGN})
  FetchContent_MakeAvailable(${name})
  if(${name}_FOUND)
    message(STATUS "mha: ${name} ${${name}_VERSION} from the system")
  else()
    message(STATUS "mha: ${name} ${tag} downloaded")
  endif()
endfunction()

set(ZLIB_BUILD_EXAMPLES OFF)
mha_dependency(ZLIB https://github.com/madler/zlib.git v1.3.1 1.2.11)
if(NOT TARGET ZLIB::ZLIB)
  # What is downloaded names its targets otherwise, and leaves its include folders to whoever links it.
  target_include_directories(zlibstatic INTERFACE "$<BUILD_INTERFACE:${zlib_SOURCE_DIR};${zlib_BINARY_DIR}>")
  set_target_properties(zlibstatic PROPERTIES POSITION_INDEPENDENT_CODE ON)
  add_library(ZLIB::ZLIB ALIAS zlibstatic)
endif()
mha_dependency(nlohmann_json https://github.com/nlohmann/json.git v3.11.3 3.10)
if(MHA_BUILD_CLI)
  mha_dependency(fmt https://github.com/fmtlib/fmt.git 11.0.2 9)
  mha_dependency(CLI11 https://github.com/CLIUtils/CLI11.git v2.4.2 2.1)
  # Has no CMake build to download; without it the tool has no --hash.
  find_package(OpenSSL 1.1.1 QUIET COMPONENTS Crypto)
  if(TARGET OpenSSL::Crypto)
    message(STATUS "mha: OpenSSL ${OPENSSL_VERSION} from the system")
  else()
    message(STATUS "mha: OpenSSL not found: mha inspect --hash is left out")
  endif()
endif()
if(MHA_BUILD_TESTS)
  mha_dependency(Catch2 https://github.com/catchorg/Catch2.git v3.7.1 3.4)
endif()
if(MHA_BUILD_BENCHMARKS)
  set(BENCHMARK_ENABLE_TESTING OFF)
  mha_dependency(benchmark https://github.com/google/benchmark.git v1.9.1 1.7)
endif()
