# Builds for 64-bit ARM on another machine:
#   cmake -B build/arm64 -G Ninja --toolchain cmake/aarch64-linux-gnu.cmake -DCMAKE_SYSROOT=/path/of/an/arm64/root
# The root has the packages that Rondo needs (tests/systems.sh arm64 makes one); programs run under qemu-user, where it
# is installed.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${CMAKE_SYSROOT}")
set(ENV{PKG_CONFIG_LIBDIR} "${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig")
find_program(RONDO_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(RONDO_QEMU)
  # Not -L: the emulator would look for every absolute path in the root first, "/" itself among them.
  set(CMAKE_CROSSCOMPILING_EMULATOR ${RONDO_QEMU} ${CMAKE_SYSROOT}/lib/ld-linux-aarch64.so.1 --library-path
      ${CMAKE_SYSROOT}/lib/aarch64-linux-gnu:${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu)
endif()
