// Package tables reads datasets in Parquet and SQLite, and writes traces as Parquet. The libraries of these formats are larger than the
// player, so the program vllm-vcr-dataset is made of it: see dataset.ReadBy and dataset.WriteParquetBy.
package tables

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/vllm-vcr/conformance/internal/base/process"
	"github.com/vllm-vcr/conformance/internal/engine/dataset"
)

// Read reads the file at path, by the end of its name: .parquet, .db, .sqlite or .sqlite3. It is a [dataset.TableReader].
func Read(path string) (t dataset.Table, err error) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".parquet":
		err = readParquet(&t, path)
	case ".db", ".sqlite", ".sqlite3":
		err = readSQLite(&t, path)
	default:
		err = fmt.Errorf("%s: want a name that ends in .parquet or .sqlite", path)
	}
	return t, err
}

// memoryBase is what the program may take of memory besides twice its rows: its libraries decode a page at once, and take what
// a page claims to hold.
const memoryBase = 512 << 20

// Main is vllm-vcr-dataset: it reads the file that its argument names and writes the table to stdout, or, with the arguments write,
// requests or steps, and a path, a trace or step statistics from stdin as Parquet. It returns the exit
// code. version is that which the linker set, if it did.
func Main(version string) int {
	if len(os.Args) > 1 && os.Args[1] == "version" {
		fmt.Println(process.Version(version))
		return 0
	}
	if len(os.Args) == 4 && os.Args[1] == "write" {
		if err := writeParquet(os.Args[2], os.Args[3], os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		return 0
	}
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, dataset.Program+": want the path of a dataset in Parquet or SQLite: `vllm-vcr play --dataset` and `vllm-vcr inspect convert` start this program")
		return 2
	}
	if info, err := os.Stat(os.Args[1]); err == nil {
		limitMemory(memoryBase + 2*uint64(dataset.Limit(info.Size())))
	}
	t, err := Read(os.Args[1])
	if err == nil {
		out := bufio.NewWriter(os.Stdout)
		err = dataset.WriteTable(out, t)
		if err == nil {
			err = out.Flush()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}
