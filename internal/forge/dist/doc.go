// Command dist builds releases so that anybody can build the same bytes again:
//
//	go run ./internal/forge/dist build [-version 1.2.3] [-out DIR] [-targets os/arch,…]
//	go run ./internal/forge/dist files -version 1.2.3
//	go run ./internal/forge/dist check
//	go run ./internal/forge/dist compare [-targets os/arch,…]
//	go run ./internal/forge/dist reproduce [-share-cache] [-targets os/arch,…]
//	go run ./internal/forge/dist tag v1.2.3
//	go run ./internal/forge/dist notes 1.2.3
//	go run ./internal/forge/dist moving-tags 1.2.3 <tags
//	go run ./internal/forge/dist image-version refs/tags/v1.2.3 COMMIT
//
// build writes into dist/, for each system and architecture, vllm-vcr_<version>_<os>_<arch>.tar.gz and beside it an SBOM
// (CycloneDX JSON, .cdx.json), and checksums.txt over the archives in the format of sha256sum. An archive holds the
// binary, its helpers vllm-vcr-cluster and vllm-vcr-dataset, LICENSE and README.md, without a folder, and a manual page for each command
// in man/man1, which is made of docs/cli.md. For each it also writes a wheel, vllm_vcr-<version>-py3-none-<platform>.whl, with the binary
// and the package of Python in python/; checksums.txt has it too.
//
// The same source gives the same bytes wherever it lies and on every machine: one exact compiler, the toolchain line
// of go.mod; no path, time, user or build id in the binary or the archive; and nothing of the environment that changes
// what the compiler does. So the digests can be committed before the release is built: files writes release/VERSION,
// release/checksums.txt and release/TREE, the digest of all other files of the commit. The action that is pinned by its commit pins
// its binary with them, and takes it only if TREE names the files that it came with. check fails when TREE names others, compare tells
// whether a build elsewhere came out the same, and reproduce builds twice, in two folders with a build cache each, and compares.
//
// tag checks that a tag is that of release/VERSION, that this tree is the one of release/TREE, that it is on main as origin has it, and
// that the changelog has a section for it, which notes prints.
// moving-tags reads all tags of the repository, one a line, and prints those that a release moves, such as v1 and v1.2.
// image-version prints, as the outputs of a step, whether the image of a ref is kind=main, kind=release or, of a release that no tag is
// newer than, kind=newest, and its version: that of the release, or one that names the commit.
//
// Exit codes: 0 done, 1 the bytes are others, 2 usage or what the repository holds, 3 a program failed.
package main
