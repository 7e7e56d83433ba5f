// Package enginepb has the messages and the service of vLLM's gRPC server, generated from the .proto files of smg-grpc-proto 0.4.28.
package enginepb

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.75.0 generate
