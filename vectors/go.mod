module github.com/vllm-vcr/conformance/vectors

go 1.26.0
