// Package enginepb has the messages and the service of vLLM's gRPC server, generated from the .proto files of
// smg-grpc-proto 0.4.28.
package enginepb

//go:generate go -C ../../../tools run ./protogen ../internal/serve/enginepb github.com/vllm-vcr/conformance/internal/serve/enginepb common.proto vllm_engine.proto
