#!/bin/sh
# Makes what leaders.yaml needs, where it is missing: an authority, certificates signed by it, the store's password.
# The authority's key is not kept.
#
#   secrets.sh COORDINATORS JOB STORE     directories: of the coordinators, of the job, of the store
set -eu
umask 077
coordinators=$1 job=$2 store=$3

# its owner, and so the only one who may change it, is the user of the coordinators
cp "$(dirname "$0")/rights.toml" "$coordinators/rights.new"
mv "$coordinators/rights.new" "$coordinators/rights.toml"

if [ ! -e "$store/password" ]; then
    openssl rand -hex 32 >"$store/password.new"
    # PostgreSQL reads it as another user
    chmod 444 "$store/password.new"
    mv "$store/password.new" "$store/password"
fi

[ ! -e "$coordinators/ca.pem" ] || exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

# issue DIRECTORY COMMON-NAME SUBJECT-ALTERNATIVE-NAMES
issue() {
    new_key "$1/own.key"
    openssl req -new -key "$1/own.key" -subj "/CN=$2" -out "$work/request.pem"
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3" >"$work/extensions"
    openssl x509 -req -in "$work/request.pem" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial -days 365 \
        -extfile "$work/extensions" -out "$1/own.pem"
}

new_key "$work/ca.key"
openssl req -new -x509 -key "$work/ca.key" -subj '/CN=onceward-leaders' -days 365 -out "$work/ca.pem"
issue "$coordinators" coordinator DNS:coordinator,DNS:coordinator-2,DNS:localhost,IP:127.0.0.1
issue "$job" flights DNS:flights
cp "$work/ca.pem" "$job/ca.pem"
cp "$work/ca.pem" "$coordinators/ca.pem"
