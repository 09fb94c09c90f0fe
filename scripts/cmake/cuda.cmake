# The CUDA device, as a library that the program opens when it is asked for: libpackcuda.so with nvcc, and
# libpackemu.so, the same device on an emulated CUDA, for tests. Neither is needed to build the program.

set(PACKLUA_CUDA AUTO CACHE STRING
  "Build the CUDA device: AUTO (where nvcc and a driver are), ON (where nvcc is, as on a login node) or OFF")
set(PACKLUA_EMU AUTO CACHE STRING "Build the emulated device: AUTO (where CUDA's headers are), ON or OFF")
set(PACKLUA_CUDA_ARCHITECTURES "" CACHE STRING "Architectures, such as 80;90; empty: 80, 90 and 100")

set(cuda_roots $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
find_program(PACKLUA_NVCC nvcc HINTS ${cuda_roots} PATH_SUFFIXES bin)
get_filename_component(nvcc_folder "${PACKLUA_NVCC}" REALPATH)
get_filename_component(nvcc_folder "${nvcc_folder}" DIRECTORY)
find_path(PACKLUA_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_roots} ${nvcc_folder}/..
  PATH_SUFFIXES include)
mark_as_advanced(PACKLUA_NVCC PACKLUA_CUDA_INCLUDE)

set(has_headers FALSE)
if(PACKLUA_CUDA_INCLUDE AND EXISTS ${PACKLUA_CUDA_INCLUDE}/cublasLt.h AND CMAKE_CXX_COMPILER)
  set(has_headers TRUE)
endif()
if(PACKLUA_CUDA STREQUAL "OFF")
  set(build_cuda FALSE)
elseif(PACKLUA_CUDA STREQUAL "AUTO")
  set(build_cuda FALSE)
  if(PACKLUA_NVCC AND has_headers AND EXISTS /dev/nvidiactl)
    set(build_cuda TRUE)
  endif()
elseif(PACKLUA_NVCC AND has_headers)
  set(build_cuda TRUE)
else()
  message(FATAL_ERROR "PACKLUA_CUDA=${PACKLUA_CUDA}: no nvcc, or no headers of the runtime and cuBLASLt "
    "(${PACKLUA_NVCC}, ${PACKLUA_CUDA_INCLUDE}); set CUDA_HOME to the toolkit's folder")
endif()
if(PACKLUA_EMU STREQUAL "OFF")
  set(build_emu FALSE)
elseif(has_headers)
  set(build_emu TRUE)
elseif(PACKLUA_EMU STREQUAL "AUTO")
  set(build_emu FALSE)
else()
  message(FATAL_ERROR "PACKLUA_EMU=${PACKLUA_EMU}: the emulation needs CUDA's headers (cuda_runtime_api.h, "
    "cublasLt.h) and a C++ compiler; set CUDA_HOME to the toolkit's folder")
endif()
message(STATUS "cuda: ${build_cuda} (nvcc ${PACKLUA_NVCC}), emu: ${build_emu}")
if(NOT build_cuda AND NOT build_emu)
  return()
endif()

set(kernels ${PROJECT_SOURCE_DIR}/kernels)
file(GLOB cuda_kernels CONFIGURE_DEPENDS ${kernels}/*.cu)
file(GLOB cuda_sources CONFIGURE_DEPENDS ${host}/cuda/*.c)
set(cuda_real ${host}/cuda/libraries.c) # what the emulation has in another way
list(REMOVE_ITEM cuda_sources ${cuda_real})

# --- the host side, the same for both ---

if(NOT PACKLUA_CUDA_ARCHITECTURES)
  set(PACKLUA_CUDA_ARCHITECTURES 80 90 100)
endif()
list(JOIN PACKLUA_CUDA_ARCHITECTURES " " architectures)
file(STRINGS ${PACKLUA_CUDA_INCLUDE}/cublas_api.h cublas_line REGEX "#define CUBLAS_VER_MAJOR")
string(REGEX REPLACE ".*CUBLAS_VER_MAJOR +([0-9]+).*" "\\1" cublas_major "${cublas_line}")

add_library(packcuda_host OBJECT ${cuda_sources})
target_link_libraries(packcuda_host PUBLIC packlua_flags)
target_include_directories(packcuda_host PUBLIC ${PROJECT_SOURCE_DIR})
target_include_directories(packcuda_host SYSTEM PUBLIC ${PACKLUA_CUDA_INCLUDE})
set_target_properties(packcuda_host PROPERTIES C_VISIBILITY_PRESET hidden)
set_property(SOURCE ${host}/cuda/device.c APPEND PROPERTY COMPILE_DEFINITIONS
  PK_VERSION="${PROJECT_VERSION}" PK_CUDA_ARCHITECTURES="${architectures}")
set_property(SOURCE ${host}/cuda/libraries.c APPEND PROPERTY COMPILE_DEFINITIONS
  PK_CUBLASLT_MAJOR=${cublas_major})

# A device's library finds core's functions in the program that opens it.
function(packlua_device_library name)
  set_target_properties(${name} PROPERTIES PREFIX lib C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  target_link_libraries(${name} PRIVATE packcuda_host ${CMAKE_DL_LIBS})
  target_link_options(${name} PRIVATE -Wl,-Bsymbolic)
  add_dependencies(packlua ${name})
  install(TARGETS ${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/packlua)
endfunction()

# --- with nvcc ---

if(build_cuda)
  set(CMAKE_CUDA_COMPILER ${PACKLUA_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  enable_language(CUDA)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  set(codes)
  foreach(architecture IN LISTS PACKLUA_CUDA_ARCHITECTURES)
    list(APPEND codes "SHELL:-gencode arch=compute_${architecture},code=sm_${architecture}")
  endforeach()
  list(GET PACKLUA_CUDA_ARCHITECTURES -1 newest) # as PTX too, for what comes after it
  list(APPEND codes "SHELL:-gencode arch=compute_${newest},code=compute_${newest}")
  add_library(packcuda MODULE ${cuda_kernels} ${cuda_real})
  # No contraction: a fused operation is a stated sequence of roundings (docs/cuda.md).
  target_compile_options(packcuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${codes}
    --fmad=false -lineinfo --threads=2 "SHELL:-Xcompiler -Wall,-Wextra,-Wno-unused-parameter"
    $<$<BOOL:${PACKLUA_WERROR}>:-Werror=all-warnings>>)
  set_target_properties(packcuda PROPERTIES CUDA_RUNTIME_LIBRARY Static CUDA_ARCHITECTURES OFF
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON)
  packlua_device_library(packcuda)
endif()

# --- emulated ---

if(build_emu)
  set(emu_sources ${kernels}/emu/blas.cpp ${kernels}/emu/cupti.cpp ${kernels}/emu/dnn.cpp ${kernels}/emu/fiber.cpp
    ${kernels}/emu/nvtx.cpp ${kernels}/emu/pool.cpp ${kernels}/emu/runtime.cpp ${kernels}/emu/scheduler.cpp)
  foreach(kernel IN LISTS cuda_kernels) # nvcc's language for nvcc alone
    get_filename_component(family ${kernel} NAME_WE)
    set(wrapper ${PROJECT_BINARY_DIR}/emu/${family}.cpp)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${kernel}\"\n")
    list(APPEND emu_sources ${wrapper})
  endforeach()
  add_library(packemu MODULE ${emu_sources})
  target_include_directories(packemu PRIVATE ${kernels})
  target_compile_options(packemu PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O2 -fno-strict-aliasing
    -Wno-unknown-pragmas -Wno-unused-parameter>)
  set_target_properties(packemu PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON)
  if(PACKLUA_SANITIZE MATCHES "thread") # what it needs to know it is told (emu/fiber.h)
    set_property(SOURCE ${kernels}/emu/fiber.cpp ${kernels}/emu/scheduler.cpp APPEND PROPERTY
      COMPILE_OPTIONS -fno-sanitize=thread -DPK_EMU_RACES=1)
  endif()
  packlua_device_library(packemu)
endif()
