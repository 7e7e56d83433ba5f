// Package testenv finds and starts the real peers that tests talk to: a Python with libzmq, the Rust frontends of
// released vLLM versions, an S3 server, a runner of GitHub workflows, what builds and serves images, and the API
// server of Kubernetes.
//
// Peers are installed by the script .ci/peers into one folder, $VLLM_VCR_PEERS, by default
// ${XDG_CACHE_HOME:-$HOME/.cache}/vllm-vcr/peers:
//
//	python/bin/python            a virtual environment with pyzmq and msgspec
//	frontends/VERSION/vllm-rs    the frontend of that vLLM release
//	bin/versitygw                an S3 server
//	bin/act                      a runner of GitHub workflows
//	bin/docker-registry          a registry of images; buildah, skopeo and jq are those of the machine
//	bin/kube-apiserver, bin/etcd, kube/
//	                             the API server of Kubernetes, and the resource types of Kueue
//
// A peer is either whole or absent, as the script places it by one rename. One policy holds for an absent one, whatever
// the peer: the test is skipped, and says what is missing and which command installs it. Where peers are required, that
// is when CI or VLLM_VCR_REQUIRE_PEERS is set to anything but a false value, the test fails instead, so that no job is
// green because it had no peer to talk to. Kubernetes takes long to build and is required only by VLLM_VCR_REQUIRE_KUBE:
// `make kube-test` sets it, and .ci/run where the programs are there.
//
// What takes long, and so is not part of `go test ./...`, is marked by [Slow], as are all tests of workflows and images.
//
// A test requests what it needs and starts it:
//
//	for _, version := range testenv.FrontendVersions() {
//		t.Run(version, func(t *testing.T) {
//			cmd := exec.Command(testenv.Frontend(t, version), "serve", testenv.ModelDir(t), "--port", strconv.Itoa(port))
//			frontend := testenv.Process(t, "vllm-rs "+version, cmd)
//			// … wait for its answer or for frontend.Done() …
//		})
//	}
//
// Only tests may import this package.
package testenv
