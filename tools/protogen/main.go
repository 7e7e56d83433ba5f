// Command protogen writes the Go code of .proto files, which protoc needs C++ for: protogen FOLDER PACKAGE FILE...
// The files are in the order in which they import each other.
package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal(err)
	}
}

func run(folder, pkg string, names []string) error {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{folder}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), names...)
	if err != nil {
		return err
	}
	options := []string{"paths=source_relative"}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: names}
	for _, f := range files {
		options = append(options, "M"+f.Path()+"="+pkg)
		request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(f))
	}
	request.Parameter = proto.String(strings.Join(options, ","))
	input, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		cmd := exec.Command("go", "tool", plugin)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
		output, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
		var response pluginpb.CodeGeneratorResponse
		if err := proto.Unmarshal(output, &response); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
		if response.Error != nil {
			return fmt.Errorf("%s: %s", plugin, *response.Error)
		}
		for _, f := range response.File {
			if err := os.WriteFile(filepath.Join(folder, f.GetName()), []byte(f.GetContent()), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
