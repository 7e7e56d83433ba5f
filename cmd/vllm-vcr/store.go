package main

import (
	"io/fs"

	vcr "github.com/vllm-vcr/conformance"
	"github.com/vllm-vcr/conformance/conformance"
)

// store finds goldens in the bucket, the directory, the checkout that the
// command runs in, or the binary: the first of these that there is.
func (a *app) store(bucket, dir string) (conformance.Store, error) {
	if bucket == "" && dir == "" && exists(vcr.GoldensPath) {
		dir = vcr.GoldensPath
	}
	files, err := fs.Sub(vcr.Files, vcr.GoldensPath)
	if err != nil {
		return nil, err
	}
	return conformance.NewStore(conformance.StoreOptions{Bucket: bucket, Dir: dir, Files: files, Log: a.log}), nil
}
