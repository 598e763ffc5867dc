#!/usr/bin/env bash
# Makes the images that docker/Dockerfile and docker-compose.yml begin with, where no registry can be
# pulled from: Debian bookworm by debootstrap, with Debian's own packages in it, under the names that
# those files use. A stand-in has the label `org.kvstitch.stand-in`, and Debian's version of the
# program, not that of its name.
#   scripts/containers/bases.sh python redis prometheus haproxy postgresql
# DOCKER   the client to use; MIRROR   Debian's packages, http://deb.debian.org/debian
set -euo pipefail
cd "$(dirname "$0")/../.."
docker=${DOCKER:-docker}
debian=kvstitch-bookworm

here() { "$docker" image inspect "$1" >/dev/null 2>&1; }

bookworm() {
  here "$debian" && return
  command -v debootstrap >/dev/null || {
    echo "containers: no registry is in reach and debootstrap is missing: apt-get install debootstrap" >&2
    exit 1
  }
  local root
  root=$(mktemp -d)
  debootstrap --variant=minbase --include=ca-certificates bookworm "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$root.log" 2>&1 ||
    { tail -5 "$root.log" >&2; exit 1; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* \
    "$root"/usr/share/{doc,man,locale,info}/* "$root"/var/log/*
  # As Debian's own image: no caches of 80 MB in every layer that installs something.
  printf 'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n' >"$root/etc/apt/apt.conf.d/docker-clean"
  echo 'DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb || true"; };' >>"$root/etc/apt/apt.conf.d/docker-clean"
  tar -C "$root" -c . | "$docker" import - "$debian" >/dev/null
  rm -rf "$root" "$root.log"
}

# stand_in NAME: builds what stdin says, unless it is here or can be pulled.
stand_in() {
  here "$1" && return
  timeout 20 "$docker" pull -q "$1" >/dev/null 2>&1 && return
  bookworm
  echo "containers: $1 from Debian's packages"
  { echo "FROM $debian"; echo "LABEL org.kvstitch.stand-in=debian"; cat; } |
    "$docker" build -q --network=host -t "$1" - >/dev/null
}

image_of() { sed -nE "s|^ *image: ($1:[^ ]*)$|\1|p" docker-compose.yml; }
install='RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends'

for name in "$@"; do
  case $name in
    # The image of that name has Python's headers, for the kernels; the package with them would
    # bring a compiler along.
    python) stand_in "$(sed -n 's/^ARG PYTHON_IMAGE=//p' docker/Dockerfile)" <<EOF ;;
$install python3.11-venv python-is-python3 \\
 && cd /tmp && apt-get -qq download libpython3.11-dev \\
 && dpkg-deb --fsys-tarfile libpython3.11-dev_*.deb | tar -C / -x ./usr/include \\
 && rm -rf /tmp/*.deb /var/lib/apt/lists/*
CMD ["python"]
EOF
    # As that image: other containers may connect, and nothing else is published.
    redis) stand_in "$(image_of redis)" <<EOF ;;
RUN groupadd --gid 1000 redis && useradd --uid 999 --gid 1000 --no-create-home redis
$install redis-server && rm -rf /var/lib/apt/lists/*
WORKDIR /data
ENTRYPOINT ["sh", "-c", "exec \"\$@\" --protected-mode no", "sh"]
CMD ["redis-server"]
EOF
    prometheus) stand_in "$(image_of prom/prometheus)" <<EOF ;;
$install prometheus wget && rm -rf /var/lib/apt/lists/* \\
 && install -d -o nobody -g nogroup /prometheus
USER nobody
ENTRYPOINT ["prometheus"]
EOF
    haproxy) stand_in "$(image_of haproxy)" <<EOF ;;
$install haproxy wget && rm -rf /var/lib/apt/lists/*
EOF
    # As that image: the first start makes the cluster and the database that the environment names.
    postgresql) stand_in "$(image_of pgvector/pgvector)" <<EOF ;;
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 --no-create-home postgres
$install postgresql-15 && rm -rf /var/lib/apt/lists/* \\
 && rm -rf /var/lib/postgresql && install -d -o 999 -g 999 /var/lib/postgresql/data \\
 && chmod 3777 /run/postgresql
ENV PATH=/usr/lib/postgresql/15/bin:\$PATH PGDATA=/var/lib/postgresql/data
ENTRYPOINT ["bash", "-euc", "[ -e \$PGDATA/PG_VERSION ] || { \\
 initdb -N -E UTF8 --locale=C.UTF-8 --username=\$POSTGRES_USER --auth-host=scram-sha-256 --pwfile=<(echo \$POSTGRES_PASSWORD); \\
 echo host all all all scram-sha-256 >>\$PGDATA/pg_hba.conf; \\
 pg_ctl -w -o '-c listen_addresses=' start; createdb -U \$POSTGRES_USER \$POSTGRES_DB; \\
 pg_ctl -w stop; }; exec postgres -c 'listen_addresses=*'"]
EOF
    *) echo "containers: no stand-in for $name" >&2; exit 1 ;;
  esac
done
