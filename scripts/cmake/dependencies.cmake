# The libraries that packlua is built on. Each is looked for with pkg-config first, then under
# CMAKE_PREFIX_PATH by header and library name, so that hand-made installations are found too.
#
# packlua_dependency(NAME [REQUIRED] MODULES m... HEADER h... LIBRARY l... [DEBIAN package])
# makes the target packlua::NAME and sets packlua_NAME_FOUND.

set(PACKLUA_WITHOUT "" CACHE STRING "Optional libraries to do without, such as dnnl;cblas")

find_package(PkgConfig)

function(packlua_dependency name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "REQUIRED" "HEADER;DEBIAN" "MODULES;LIBRARY;FOLDERS")
  set(PKG_CONFIG_USE_CMAKE_PREFIX_PATH ON)
  add_library(packlua::${name} INTERFACE IMPORTED GLOBAL)
  if(name IN_LIST PACKLUA_WITHOUT AND NOT arg_REQUIRED)
    message(STATUS "${name}: left out")
    set(packlua_${name}_FOUND FALSE PARENT_SCOPE)
    unset(packlua_${name}_MODULE PARENT_SCOPE)
    return()
  endif()
  if(PKG_CONFIG_FOUND)
    foreach(module IN LISTS arg_MODULES)
      pkg_check_modules(packlua_${name}_${module} QUIET IMPORTED_TARGET GLOBAL ${module})
      if(packlua_${name}_${module}_FOUND)
        target_link_libraries(packlua::${name} INTERFACE PkgConfig::packlua_${name}_${module})
        message(STATUS "${name}: ${module} ${packlua_${name}_${module}_VERSION} by pkg-config")
        set(packlua_${name}_FOUND TRUE PARENT_SCOPE)
        set(packlua_${name}_MODULE ${module} PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endif()
  find_path(packlua_${name}_INCLUDE ${arg_HEADER} PATH_SUFFIXES ${arg_FOLDERS})
  find_library(packlua_${name}_LIBRARY NAMES ${arg_LIBRARY})
  mark_as_advanced(packlua_${name}_INCLUDE packlua_${name}_LIBRARY)
  if(packlua_${name}_INCLUDE AND packlua_${name}_LIBRARY)
    target_include_directories(packlua::${name} INTERFACE ${packlua_${name}_INCLUDE})
    target_link_libraries(packlua::${name} INTERFACE ${packlua_${name}_LIBRARY})
    message(STATUS "${name}: ${packlua_${name}_LIBRARY}")
    set(packlua_${name}_FOUND TRUE PARENT_SCOPE)
  elseif(arg_REQUIRED)
    message(FATAL_ERROR
      "${name} is missing: no pkg-config module of ${arg_MODULES}, and no ${arg_HEADER} with a "
      "library of ${arg_LIBRARY} under CMAKE_PREFIX_PATH. Debian's package is ${arg_DEBIAN}; "
      "docs/install.md shows how to point at an own build.")
  else()
    message(STATUS "${name}: not found (optional; Debian's package is ${arg_DEBIAN})")
    set(packlua_${name}_FOUND FALSE PARENT_SCOPE)
  endif()
endfunction()

# The name by which the dynamic linker knows a target's shared library, and the folder that it is in.
function(packlua_shared_library target name folder)
  set(file ${target})
  while(TARGET ${file})
    get_target_property(linked ${file} INTERFACE_LINK_LIBRARIES)
    list(GET linked 0 file)
  endwhile()
  if(NOT file MATCHES "[.]so")
    message(FATAL_ERROR "${file} is opened while packlua runs: it must be a shared library")
  endif()
  get_filename_component(found_folder ${file} DIRECTORY)
  get_filename_component(found_name ${file} NAME)
  if(CMAKE_READELF)
    execute_process(COMMAND ${CMAKE_READELF} -d ${file} OUTPUT_VARIABLE section ERROR_QUIET)
    if(section MATCHES "SONAME[^[]*\\[([^]]+)\\]")
      set(found_name ${CMAKE_MATCH_1})
    endif()
  endif()
  set(${name} ${found_name} PARENT_SCOPE)
  set(${folder} ${found_folder} PARENT_SCOPE)
endfunction()

find_package(Threads REQUIRED)
packlua_dependency(luajit REQUIRED MODULES luajit HEADER luajit.h LIBRARY luajit-5.1 luajit
  FOLDERS luajit-2.1 DEBIAN libluajit-5.1-dev)
packlua_dependency(cjson REQUIRED MODULES libcjson cjson HEADER cJSON.h LIBRARY cjson
  FOLDERS cjson DEBIAN libcjson-dev)
packlua_dependency(zstd REQUIRED MODULES libzstd HEADER zstd.h LIBRARY zstd DEBIAN libzstd-dev)
packlua_dependency(zlib REQUIRED MODULES zlib HEADER zlib.h LIBRARY z DEBIAN zlib1g-dev)
packlua_dependency(yaml REQUIRED MODULES yaml-0.1 HEADER yaml.h LIBRARY yaml DEBIAN libyaml-dev)
packlua_dependency(nettle REQUIRED MODULES nettle HEADER nettle/sha2.h LIBRARY nettle
  DEBIAN nettle-dev)
packlua_dependency(cblas MODULES openblas cblas HEADER cblas.h LIBRARY openblas cblas blas
  FOLDERS openblas DEBIAN libopenblas-openmp-dev)
packlua_dependency(dnnl MODULES dnnl HEADER dnnl.h LIBRARY dnnl DEBIAN libdnnl-dev)
packlua_dependency(libedit MODULES libedit HEADER editline/readline.h LIBRARY edit
  DEBIAN libedit-dev)
# By name: its pkg-config module would link the trainer as well.
packlua_dependency(sentencepiece HEADER sentencepiece_processor.h LIBRARY sentencepiece
  DEBIAN libsentencepiece-dev)
