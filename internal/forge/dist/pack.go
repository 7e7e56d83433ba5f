package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const archiveSuffix = ".tar.gz"

// An entry is a file that goes into an archive under its own name, without its folder.
type entry struct {
	path string
	mode int64
}

// pack writes a gzipped tar of the entries, which holds nothing that another machine would say otherwise: they are
// sorted by name, belong to user and group 0, and are of 1970.
func pack(path string, entries []entry) (err error) {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// Its header has neither a name nor a time unless they are set.
	zw, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b entry) int {
		return cmp.Compare(filepath.Base(a.path), filepath.Base(b.path))
	})
	for _, e := range sorted {
		if err := e.write(tw); err != nil {
			return err
		}
	}
	return errors.Join(tw.Close(), zw.Close())
}

func (e entry) write(tw *tar.Writer) error {
	file, err := os.Open(e.path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	err = tw.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: filepath.Base(e.path), Size: info.Size(), Mode: e.mode,
		ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
	})
	if err != nil {
		return err
	}
	_, err = io.Copy(tw, file)
	return err
}
