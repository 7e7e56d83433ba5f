#!/usr/bin/env bash
# Install the vllm-vcr that belongs to this commit of the action, and tell the next steps where it is.
#
# Which binary that is, release/VERSION and release/checksums.txt say, which are committed with the action: whoever pins
# the action pins the binary. release/TREE says which files that release was built from: where those of the action are others,
# this commit is no release, and nothing is downloaded. The inputs come in the environment, never as text of a script:
#
#   INPUT_VERIFY     checksum     the archive has the committed sha256 (the default)
#                    attestation  that, and GitHub's attestation says that the release workflow has built it (needs gh)
#                    source       no archive: build the checkout of the action (needs Go)
#                    none         only with INPUT_BINARY: trust the caller
#   INPUT_VERSION    another release, with the sha256 of its archive for this system in INPUT_CHECKSUM
#   INPUT_BINARY     a binary that is already there; nothing is downloaded
#   INPUT_GITHUB_TOKEN  for gh
#   VLLM_VCR_RELEASES   where releases are, by default GitHub: BASE/v1.2.3/vllm-vcr_1.2.3_linux_amd64.tar.gz
#
# Exit codes: 2 the inputs make no sense, 3 it could not be installed. Works in the bash of macOS (3.2) and of Git for
# Windows.
set -euo pipefail

repository=vllm-vcr/conformance
releases=${VLLM_VCR_RELEASES:-https://github.com/$repository/releases/download}
digits='^[0-9a-f]{64}$'
token=${INPUT_GITHUB_TOKEN:-}
unset INPUT_GITHUB_TOKEN # which every program below would be given
a_version='^([0-9v]|\(devel\))[^[:space:]]*$'
not_released="pin a release, such as $repository@v1, or its commit, or use verify: source, which builds this commit with the Go of the runner"
hasher=(sha256sum)
command -v sha256sum >/dev/null || hasher=(shasum -a 256) # macOS
tmp=

main() {
  trap cleanup EXIT
  local verify=${INPUT_VERIFY:-checksum}
  if [[ -n $token && ${GITHUB_ACTIONS:-} == true ]]; then echo "::add-mask::$token"; fi
  here=$(posix "${GITHUB_ACTION_PATH:-$(dirname "${BASH_SOURCE[0]}")/..}")
  temp=$(posix "${RUNNER_TEMP:-${TMPDIR:-/tmp}}")
  check_inputs "$verify"
  platform
  if [[ -n ${INPUT_BINARY:-} ]]; then
    given
  elif [[ $verify == source ]]; then
    from_source
  else
    from_release "$verify"
  fi
  report
}

check_inputs() {
  case $1 in
    checksum | attestation | source | none) ;;
    *) fail 2 "input verify is \"$1\": want checksum, attestation, source or none" ;;
  esac
  if [[ -n ${INPUT_BINARY:-} ]]; then
    [[ $1 == checksum || $1 == none ]] || fail 2 "input verify is $1, but with binary there is nothing to verify: leave one of the two out"
    [[ -z ${INPUT_VERSION:-} && -z ${INPUT_CHECKSUM:-} ]] || fail 2 "input binary is given: version and checksum are for a download"
    return 0
  fi
  [[ $1 != none ]] || fail 2 "input verify is none: a download is always verified, so this is for the input binary only"
  [[ $1 != source || -z ${INPUT_VERSION:-}${INPUT_CHECKSUM:-} ]] ||
    fail 2 "input verify is source: it builds the checkout of the action, whatever version and checksum say; pin the action instead"
  [[ -z ${INPUT_CHECKSUM:-} || -n ${INPUT_VERSION:-} ]] || fail 2 "input checksum is given without the version that it is of"
  [[ -z ${INPUT_CHECKSUM:-} || $INPUT_CHECKSUM =~ $digits ]] || fail 2 "input checksum is \"$INPUT_CHECKSUM\": want a sha256, 64 lowercase hexadecimal digits"
}

# platform sets os, arch and exe as releases name them.
platform() {
  case ${RUNNER_OS:-$(uname -s)} in
    Linux) os=linux ;;
    macOS | Darwin) os=darwin ;;
    Windows | MINGW* | MSYS* | CYGWIN*) os=windows ;;
    *) fail 3 "there is no vllm-vcr for the system ${RUNNER_OS:-$(uname -s)}: Linux, macOS and Windows are supported" ;;
  esac
  case ${RUNNER_ARCH:-$(uname -m)} in
    X64 | x86_64 | amd64) arch=amd64 ;;
    ARM64 | arm64 | aarch64) arch=arm64 ;;
    *) fail 3 "there is no vllm-vcr for the processor ${RUNNER_ARCH:-$(uname -m)}: X64 and ARM64 are supported" ;;
  esac
  exe=vllm-vcr
  helpers=(vllm-vcr-cluster vllm-vcr-dataset) # which vllm-vcr calls
  if [[ $os == windows ]]; then
    exe+=.exe
    helpers=("${helpers[@]/%/.exe}")
  fi
}

given() {
  binary=$(posix "$INPUT_BINARY")
  [[ $binary == /* ]] || binary=$PWD/$binary
  [[ -f $binary ]] || fail 2 "input binary: there is no file $INPUT_BINARY"
  [[ -x $binary ]] || fail 2 "input binary: $INPUT_BINARY cannot be run: make it executable (chmod +x)"
}

from_source() {
  command -v go >/dev/null || fail 3 "verify: source builds vllm-vcr and there is no Go: put a step with actions/setup-go before this one"
  [[ -f $here/go.mod ]] || fail 3 "verify: source: the checkout of the action has no go.mod: was it vendored without its source"
  local version
  version=$(pinned_version)
  make_temp "$temp"
  binary=$tmp/$exe
  # A workspace or flags of the caller's repository are not those of the action.
  (
    cd "$here"
    CGO_ENABLED=0 GOFLAGS='' GOWORK=off go build -trimpath -buildvcs=false \
      -ldflags "-s -w -buildid= -X main.version=${version:-0.0.0}-source" -o "$tmp/" ./cmd/vllm-vcr ./cmd/vllm-vcr-cluster ./cmd/vllm-vcr-dataset
  ) || fail 3 "verify: source: go build failed: see the log above"
  tmp= # stays, until the runner clears its folder
}

from_release() {
  local pinned digest asset
  pinned=$(pinned_version)
  version=${INPUT_VERSION:-$pinned}
  version=${version#v}
  [[ -n $version ]] || fail 3 "this commit of the action is not released (it has no release/VERSION): $not_released"
  [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail 2 "version is \"$version\": want one such as 1.2.3"
  asset=vllm-vcr_${version}_${os}_${arch}.tar.gz
  digest=${INPUT_CHECKSUM:-}
  if [[ -z $digest ]]; then
    [[ $version == "$pinned" ]] || fail 2 "version $version is not $pinned, which this action pins: its input checksum is needed, the sha256 of $asset"
    require_tree
    digest=$(pinned_digest "$asset")
  fi
  local kept
  kept=$(tool_cache)/vllm-vcr/$version/$digest.tar.gz
  make_temp "$temp"
  if take "$kept" "$digest"; then
    echo "vllm-vcr $version is already in $kept"
    kept=
  else
    download "$asset" "$digest"
  fi
  [[ $1 != attestation ]] || attest
  [[ -z $kept ]] || keep "$kept"
  unpack "$asset"
}

# pinned_version prints what release/VERSION says, or nothing.
pinned_version() {
  [[ ! -f $here/release/VERSION ]] || tr -d ' \t\r\n' <"$here/release/VERSION"
}

pinned_digest() {
  local sums=$here/release/checksums.txt found
  [[ -f $sums ]] || fail 3 "release/checksums.txt is missing in the action: use a released version of the action, or verify: source"
  found=$(awk -v name="$1" '{ sub(/\r$/, ""); sub(/^\*/, "", $2) } $2 == name { print $1 }' "$sums")
  [[ $found =~ $digits ]] || fail 3 "release/checksums.txt of the action has no sha256 of $1, or several"
  echo "$found"
}

# require_tree fails unless the files of the action are those that the release was built from: an older binary would run in
# place of the code of this commit.
require_tree() {
  local named='' is
  if [[ -f $here/release/TREE ]]; then named=$(tr -d ' \t\r\n' <"$here/release/TREE"); fi
  is=$(tree) || fail 3 "the files of the action in $here cannot be read"
  [[ $named == "$is" ]] ||
    fail 3 "this commit of the action is not released: release/ is of the tree ${named:0:12}, and this is ${is:0:12}: $not_released"
}

# tree prints the digest of the files of the action but release/, as internal/forge/dist computes it of a commit.
tree() {
  # The find and sort of Windows are other programs.
  if [[ $os == windows && -x /usr/bin/find ]]; then PATH=/usr/bin:$PATH; fi
  local sum
  cd "$here" || return
  sum=$(find . -type f ! -path './release/*' ! -path './.git/*' ! -path ./.git | sed 's#^\./##' | LC_ALL=C sort | tr '\n' '\0' |
    xargs -0 "${hasher[@]}" | sed 's/^\([0-9a-f]*\) [ *]/\1  /' | "${hasher[@]}") || return
  echo "${sum%% *}"
}

# tool_cache prints the folder that outlives the job on a runner of one's own.
tool_cache() {
  if [[ -n ${RUNNER_TOOL_CACHE:-} ]]; then posix "$RUNNER_TOOL_CACHE"; else echo "$temp"; fi
}

# take copies what an earlier job has kept, if that is still the pinned archive. Whoever could write there could also
# have written a digest beside it: so the one of the action decides, and of the copy that is unpacked.
take() {
  [[ -f $1 ]] && cp "$1" "$tmp/archive" 2>/dev/null && [[ $(sha256 "$tmp/archive") == "$2" ]]
}

# keep puts the archive where the next job finds it, by a rename: another job may do the same at the same time, with the
# same bytes. Where it cannot be kept, the next job downloads it again.
keep() {
  local beside
  if mkdir -p "${1%/*}" 2>/dev/null && beside=$(mktemp "${1%/*}/.new.XXXXXX" 2>/dev/null) &&
    cp "$tmp/archive" "$beside" 2>/dev/null && mv -f "$beside" "$1" 2>/dev/null; then
    return
  fi
  if [[ -n ${beside:-} ]]; then rm -f "$beside"; fi
  echo "vllm-vcr cannot be kept in ${1%/*}: the next job downloads it again"
}

download() {
  local from=$releases/v$version/$1 protocols='=https' redirects='=https' status code=0 got
  # Whoever names another place for releases decides how it is reached. The digest holds there too.
  if [[ -n ${VLLM_VCR_RELEASES:-} ]]; then protocols='=https,http,file' redirects='=https,http'; fi
  command -v curl >/dev/null || fail 3 "there is no curl on this runner: install it, or give the input binary"
  status=$(curl --location --silent --show-error --proto "$protocols" --proto-redir "$redirects" --retry 3 --connect-timeout 20 \
    --speed-limit 1000 --speed-time 60 --write-out '%{http_code}' --output "$tmp/archive" "$from" 2>"$tmp/said") || code=$?
  case $code:$status in
    0:200) ;;
    0:000) [[ $from == file://* ]] || fail 3 "download of $1 failed: no answer" ;;
    0:404) fail 3 "release v$version has no $1: HTTP 404 at $(harmless "$from")" ;;
    0:*) fail 3 "download of $1 failed: HTTP $status at $(harmless "$from")" ;;
    23:*) fail 3 "download of $1 failed: $temp cannot be written, is the disk full: $(tail -n 1 "$tmp/said")" ;;
    37:*) fail 3 "release v$version has no $1: no file $(harmless "$from")" ;;
    *) fail 3 "download of $1 failed: $(tail -n 1 "$tmp/said"); without a network, give the input binary" ;;
  esac
  got=$(sha256 "$tmp/archive")
  [[ $got == "$2" ]] || fail 3 "$1 has the wrong checksum and was thrown away: sha256 is $got, the action pins $2"
}

attest() {
  command -v gh >/dev/null || fail 3 "verify: attestation needs the GitHub CLI, gh, which this runner does not have: install it, or use verify: checksum"
  mv "$tmp/archive" "$tmp/archive.tar.gz"
  GH_TOKEN=${token:-${GH_TOKEN:-}} gh attestation verify "$tmp/archive.tar.gz" --repo "$repository" \
    --signer-workflow "$repository/.github/workflows/release.yml" >"$tmp/said" 2>&1 ||
    fail 3 "GitHub does not attest this archive: $(tail -n 1 "$tmp/said")"
  mv "$tmp/archive.tar.gz" "$tmp/archive"
}

unpack() {
  # All at once, as each time the whole archive is inflated. Older releases have all in one binary.
  if ! (cd "$tmp" && tar -xzf - "$exe" "${helpers[@]}" <archive 2>said && chmod 755 "$exe" "${helpers[@]}"); then
    (cd "$tmp" && rm -f "${helpers[@]}" && tar -xzf - "$exe" <archive 2>said && chmod 755 "$exe") ||
      fail 3 "$1 cannot be unpacked into $tmp, is the disk full: $(tail -n 1 "$tmp/said")"
  fi
  rm -f "$tmp/archive" "$tmp/said"
  binary=$tmp/$exe
  tmp= # stays, until the runner clears its folder
}

# report checks that the binary runs, and hands on where it is.
report() {
  local says code=0 native
  says=$("$binary" version --short </dev/null 2>&1) || code=$?
  [[ $code -eq 0 && $says =~ $a_version ]] ||
    fail 3 "$binary is no vllm-vcr that runs here: \"version --short\" ended with exit code $code and said: $says"
  native=$binary
  if command -v cygpath >/dev/null; then native=$(cygpath -m "$binary"); fi
  [[ $native != *$'\n'* ]] || fail 3 "the path of vllm-vcr has a line end in it"
  echo "vllm-vcr $says: $native"
  output binary "$native"
  output version "$says"
}

output() {
  if [[ -n ${GITHUB_OUTPUT:-} ]]; then echo "$1=$2" >>"$(posix "$GITHUB_OUTPUT")"; fi
}

# posix prints a path as bash wants it: a runner on Windows gives D:\a\_temp.
posix() {
  if command -v cygpath >/dev/null; then cygpath -u "$1"; else printf '%s\n' "$1"; fi
}

sha256() {
  local sum
  sum=$("${hasher[@]}" <"$1") || return
  echo "${sum%% *}"
}

make_temp() {
  mkdir -p "$1" 2>/dev/null || true
  tmp=$(mktemp -d "$1/vllm-vcr.XXXXXX") || fail 3 "$1 cannot be written: is the disk full"
}

# harmless prints a URL without what may be secret in it.
harmless() { sed -e 's#//[^/@]*@#//#' -e 's#?.*##' <<<"$1"; }

cleanup() {
  if [[ -n $tmp && -d $tmp ]]; then rm -rf "$tmp"; fi
}

# fail ends the step with an exit code. What it says is one line, and no command to the runner.
fail() {
  local code=$1 text=${2//$'\n'/ }
  text=${text//$'\r'/ }
  output exit-code "$code"
  if [[ ${GITHUB_ACTIONS:-} == true ]]; then
    text=${text//%/%25}
    echo "::error title=install vllm-vcr::$text" >&2
  else
    echo "install: $text" >&2
  fi
  exit "$code"
}

main
