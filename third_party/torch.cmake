# Finds LibTorch and defines mha::torch, the one target that everything links.
#
# Looked for in this order:
#   1. a target `torch` that the surrounding project has defined already,
#   2. Torch_DIR or CMAKE_PREFIX_PATH: an unpacked LibTorch archive or an installed wheel,
#   3. the torch of the active virtual environment, then that of the project's own .venv.
#
# find_package(Torch) is not called: with a CUDA build it stops on a machine without the CUDA toolkit, although
# C++ code that launches no kernels of its own needs only the libraries beside the headers.

set(MHA_TORCH_MINIMUM 2.13.0)

# Writes the torch package of one virtual environment to `result`, or an empty string.
function(mha_torch_of_environment environment result)
  file(GLOB packages LIST_DIRECTORIES true "${environment}/lib/python3*/site-packages/torch")
  set(found "")
  foreach(package IN LISTS packages)
    if(EXISTS "${package}/share/cmake/Torch/TorchConfig.cmake")
      set(found "${package}")
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Writes LibTorch's root folder (it holds include/ and lib/) to `result`, or an empty string.
function(mha_locate_torch result)
  set(${result} "" PARENT_SCOPE)
  if(Torch_DIR)
    if(EXISTS "${Torch_DIR}/TorchConfig.cmake")
      cmake_path(ABSOLUTE_PATH Torch_DIR NORMALIZE OUTPUT_VARIABLE directory)
      cmake_path(APPEND directory ../../.. OUTPUT_VARIABLE root)
      cmake_path(NORMAL_PATH root)
      set(${result} "${root}" PARENT_SCOPE)
      return()
    endif()
    message(FATAL_ERROR "mha: Torch_DIR is \"${Torch_DIR}\", but no TorchConfig.cmake is there. "
                        "Expected LibTorch's share/cmake/Torch folder.")
  endif()
  find_path(MHA_TORCH_CONFIG_DIR TorchConfig.cmake PATH_SUFFIXES share/cmake/Torch Torch NO_CACHE)
  if(MHA_TORCH_CONFIG_DIR)
    cmake_path(SET root NORMALIZE "${MHA_TORCH_CONFIG_DIR}/../../..")
    set(${result} "${root}" PARENT_SCOPE)
    return()
  endif()
  foreach(environment IN ITEMS "$ENV{VIRTUAL_ENV}" "$ENV{CONDA_PREFIX}" "${PROJECT_SOURCE_DIR}/.venv")
    if(environment)
      mha_torch_of_environment("${environment}" package)
      if(package)
        set(${result} "${package}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# Writes the version in LibTorch's headers to `result`, or an empty string.
function(mha_torch_version root result)
  set(${result} "" PARENT_SCOPE)
  foreach(header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/${header}")
      file(STRINGS "${root}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
      list(LENGTH lines count)
      if(count EQUAL 3)
        list(TRANSFORM lines REPLACE ".* ([0-9]+)$" "\\1")
        list(JOIN lines "." version)
        set(${result} "${version}" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

function(mha_require_torch_version version where)
  if(NOT version OR version VERSION_LESS MHA_TORCH_MINIMUM)
    message(FATAL_ERROR "mha: LibTorch at \"${where}\" is version \"${version}\", expected at least "
                        "${MHA_TORCH_MINIMUM}. Try: pip install torch==${MHA_TORCH_MINIMUM}")
  endif()
endfunction()

# Links the libraries of a LibTorch root folder into mha_torch, as find_package(Torch) would.
function(mha_link_torch_root root)
  foreach(name IN ITEMS torch torch_cpu c10)
    find_library(MHA_LIBRARY_${name} ${name} PATHS "${root}/lib" NO_DEFAULT_PATH NO_CACHE)
    if(NOT MHA_LIBRARY_${name})
      message(FATAL_ERROR "mha: LibTorch at \"${root}\" has no library ${name} in lib/. Expected an unpacked "
                          "LibTorch archive or an installed wheel. Try: pip install torch==${MHA_TORCH_MINIMUM}")
    endif()
  endforeach()
  # Device libraries register their kernels when loaded; nothing refers to a symbol of theirs.
  set(device_libraries "")
  foreach(name IN ITEMS torch_cuda c10_cuda torch_hip c10_hip)
    find_library(MHA_LIBRARY_${name} ${name} PATHS "${root}/lib" NO_DEFAULT_PATH NO_CACHE)
    if(MHA_LIBRARY_${name})
      list(APPEND device_libraries "${MHA_LIBRARY_${name}}")
    endif()
  endforeach()
  target_include_directories(mha_torch SYSTEM INTERFACE "${root}/include" "${root}/include/torch/csrc/api/include")
  if(device_libraries)
    list(JOIN device_libraries "," joined)
    target_link_libraries(mha_torch INTERFACE
      "-Wl,--no-as-needed,${joined},${MHA_LIBRARY_torch},--as-needed")
  endif()
  target_link_libraries(mha_torch INTERFACE "${MHA_LIBRARY_torch}" "${MHA_LIBRARY_torch_cpu}" "${MHA_LIBRARY_c10}")
endfunction()

if(NOT TARGET mha_torch)
  add_library(mha_torch INTERFACE IMPORTED GLOBAL)
  add_library(mha::torch ALIAS mha_torch)
  if(TARGET torch)
    if(Torch_VERSION)
      mha_require_torch_version("${Torch_VERSION}" "the existing target torch")
    endif()
    target_link_libraries(mha_torch INTERFACE ${TORCH_LIBRARIES} torch)
    message(STATUS "mha: LibTorch ${Torch_VERSION} from the existing target torch")
  else()
    mha_locate_torch(mha_torch_root)
    if(NOT mha_torch_root)
      message(FATAL_ERROR "mha: LibTorch not found: no target torch, no Torch_DIR, nothing in CMAKE_PREFIX_PATH, no torch "
                          "in the active virtual environment or in ${PROJECT_SOURCE_DIR}/.venv. "
                          "Try: python3 -m venv .venv && .venv/bin/pip install torch==${MHA_TORCH_MINIMUM}")
    endif()
    mha_torch_version("${mha_torch_root}" mha_torch_found_version)
    mha_require_torch_version("${mha_torch_found_version}" "${mha_torch_root}")
    mha_link_torch_root("${mha_torch_root}")
    message(STATUS "mha: LibTorch ${mha_torch_found_version} at ${mha_torch_root}")
  endif()
endif()
