package local

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Files of an environment that are ours.
const (
	wholeFile    = "whole"    // written last: what it is made of
	packagesFile = "packages" // what is installed in it
)

// check looks whether an environment is whole, and returns what it is made of: it was finished, is of the release, and
// every file that its packages list is there with its size.
func check(home, release string) (origin string, err error) {
	text, err := os.ReadFile(filepath.Join(home, wholeFile))
	if err != nil {
		return "", err
	}
	if origin = strings.TrimSpace(string(text)); origin == "" {
		return "", fmt.Errorf("%s is empty", filepath.Join(home, wholeFile))
	}
	if _, err := os.Stat(filepath.Join(home, "bin", "python")); err != nil {
		return "", fmt.Errorf("its interpreter: %w", err) // a link, whose target may be gone
	}
	own, err := filepath.Glob(filepath.Join(home, "lib", "python3*", "site-packages", "vllm-"+release+"+cpu.dist-info"))
	if err != nil || len(own) != 1 {
		return "", fmt.Errorf("vllm %s is not installed in it", release)
	}
	site := filepath.Dir(own[0])
	records, err := filepath.Glob(filepath.Join(site, "*.dist-info", "RECORD"))
	if err != nil || len(records) == 0 {
		return "", fmt.Errorf("no packages in %s", site)
	}
	for _, record := range records {
		if err := checkRecord(site, record); err != nil {
			return "", err
		}
	}
	return origin, checkPackages(home, len(records))
}

// checkPackages compares the list of packages with how many there are. That of vllm itself may have no RECORD.
func checkPackages(home string, records int) error {
	text, err := os.ReadFile(filepath.Join(home, packagesFile))
	if err != nil {
		return err
	}
	if listed := strings.Count(string(text), "\n"); records < listed-1 {
		return fmt.Errorf("%d packages are listed, %d are there", listed, records)
	}
	return nil
}

// checkRecord compares the sizes that an installed package lists with those of its files.
func checkRecord(site, record string) error {
	file, err := os.Open(record)
	if err != nil {
		return err
	}
	defer file.Close()
	rows := csv.NewReader(file)
	rows.ReuseRecord = true
	rows.FieldsPerRecord = 3 // path, digest, size
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", record, err)
		}
		if row[2] == "" { // what was compiled after the installation, and the list itself
			continue
		}
		path := filepath.Join(site, filepath.FromSlash(row[0]))
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if size := strconv.FormatInt(info.Size(), 10); size != row[2] {
			return fmt.Errorf("%s has %s bytes, want %s", path, size, row[2])
		}
	}
}
