// Package grpc answers calls of gRPC on the HTTP/2 server of package net/http: the framing of messages, statuses, deadlines, the
// health check and reflection. Messages are read and written field by field, see [Fields] and [AppendMessage]; no code is generated.
// The modules google.golang.org/grpc and google.golang.org/protobuf would make the program larger by megabytes.
package grpc
