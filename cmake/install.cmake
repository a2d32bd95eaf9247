# cmake --install: headers under include/rondo, archives, and find_package(rondo CONFIG).
