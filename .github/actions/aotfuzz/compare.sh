#!/usr/bin/env bash
# Runs the programs of one seed on two commits of a compiler, and exits with 1 if only the second has a bucket.
# Reads TARGET, BASE, INSTALL, SECONDS_ON_BASE, SEED, PROFILE and OUT from the environment; see action.yml.
set -euo pipefail

mkdir -p "$OUT"
out=$(realpath "$OUT")
head=$PWD
base=$(mktemp -d)
git worktree add --detach "$base" "$BASE"
trap 'git -C "$head" worktree remove --force "$base"' EXIT

# Runs a campaign on the commit in a folder. Its findings are not the end: what counts is what only one has.
campaign() {
    local folder=$1 name=$2
    shift 2
    (cd "$folder" && bash -c "$INSTALL")
    local status=0
    (cd "$folder" && aotfuzz run --target "$TARGET" --seed "$SEED" --profile "$PROFILE" --known none \
        --out "$out/$name" --json "$@") > "$out/$name.json" || status=$?
    if [ "$status" != 0 ] && [ "$status" != 1 ]; then
        echo "the campaign on the $name ended with status $status" >&2
        exit "$status"
    fi
}

campaign "$base" base --seconds "$SECONDS_ON_BASE"
cases=$(python -c 'import json, sys; print(max(1, json.loads(sys.stdin.read().splitlines()[-1])["cases"]))' < "$out/base.json")
campaign "$head" head --cases "$cases"
aotfuzz report "$out/head"
aotfuzz diff "$out/base" "$out/head" --junit "$out/junit.xml" --sarif "$out/aotfuzz.sarif"
