package tables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/vllm-vcr/conformance/internal/engine/dataset"
)

// maxColumns bounds the columns of a file, each of which costs the library 24 KB before the first row is read.
const maxColumns = 1000

// readParquet reads rows as objects. What the library panics over is an error of the file.
func readParquet(t *dataset.Table, path string) (err error) {
	row := 0
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("row %d: broken parquet file: %v", row+1, r)
		}
	}()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	if err := checkFooter(file, info.Size()); err != nil {
		return err
	}
	table, err := parquet.OpenFile(file, info.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return err
	}
	if n := len(table.Schema().Columns()); n > maxColumns {
		return fmt.Errorf("%d columns: want at most %d", n, maxColumns)
	}
	if err := checkCodecs(table); err != nil {
		return err
	}
	if err := checkSizes(table, info.Size()); err != nil {
		return err
	}
	reader := parquet.NewGenericReader[any](table, table.Schema())
	defer reader.Close()
	for batch := make([]any, 16); ; {
		n, err := reader.Read(batch)
		for _, value := range batch[:n] {
			row++
			fields, _ := plain(value).(map[string]any)
			if t.Add(row, fields); t.Taken() > dataset.Limit(info.Size()) {
				return fmt.Errorf("row %d: %w", row, dataset.ErrTooLarge(info.Size()))
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("row %d: %w", row+1, err)
		}
		clear(batch)
	}
}

// checkFooter compares the length of the footer, for which the library takes memory before it reads, with that of the file.
func checkFooter(file io.ReaderAt, size int64) error {
	const magic = "PAR1"
	var end [8]byte
	if _, err := file.ReadAt(end[:], size-int64(len(end))); err != nil || string(end[4:]) != magic {
		return fmt.Errorf("not a parquet file: it does not end in %s", magic)
	}
	if n := int64(binary.LittleEndian.Uint32(end[:])); n > size-int64(len(end)+len(magic)) {
		return fmt.Errorf("broken parquet file: a footer of %d bytes in a file of %d", n, size)
	}
	return nil
}

// checkCodecs refuses LZ4: of a broken block of it the library takes ever more memory.
func checkCodecs(table *parquet.File) error {
	for _, group := range table.Metadata().RowGroups {
		for _, column := range group.Columns {
			if codec := column.MetaData.Codec; codec == format.Lz4Raw {
				return fmt.Errorf("compressed by %v, which is not supported: write it with snappy, zstd, gzip or brotli", codec)
			}
		}
	}
	return nil
}

// checkSizes refuses a file that is too large by its footer. What that does not show, because values repeat or because it
// lies, the rows show, and the bound on the memory of the program: see limitMemory.
func checkSizes(table *parquet.File, size int64) error {
	left := dataset.Limit(size)
	for _, group := range table.Metadata().RowGroups {
		for _, column := range group.Columns {
			n := column.MetaData.TotalUncompressedSize
			if n < 0 || n > left {
				return dataset.ErrTooLarge(size)
			}
			left -= n
		}
	}
	return nil
}

// plain makes texts of bytes, and lists of what Parquet has for lists: {"list": [{"element": …}]}.
func plain(value any) any {
	switch v := value.(type) {
	case []byte:
		return string(v)
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
		return v
	case map[string]any:
		if inner, ok := v["list"].([]any); ok && len(v) == 1 {
			return plain(elements(inner))
		}
		for key := range v {
			v[key] = plain(v[key])
		}
	}
	return value
}

// elements takes the wrapping off each element of a list.
func elements(list []any) []any {
	for i := range list {
		if wrapped, ok := list[i].(map[string]any); ok && len(wrapped) == 1 {
			for _, element := range wrapped {
				list[i] = element
			}
		}
	}
	return list
}
