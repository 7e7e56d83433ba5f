package golden

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// toFile publishes to a path of this machine.
func (p *publication) toFile(name string) error {
	// Nothing is written, and no permission to is needed, where the bytes are already.
	if _, err := os.Lstat(name); err == nil {
		if err := p.measure(); err != nil {
			return err
		}
		return p.compareFile(name)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".partial-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	if err := errors.Join(p.copyTo(temp), temp.Close()); err != nil {
		return err
	}
	err = create(temp.Name(), name)
	if errors.Is(err, fs.ErrExist) { // somebody was faster
		return p.compareFile(name)
	}
	return err
}

// copyTo copies the file and hashes what it copies.
func (p *publication) copyTo(temp *os.File) error {
	f, err := p.open()
	if err != nil {
		return err
	}
	defer f.Close()
	p.result.SHA256, p.result.Size, err = digestOf(io.TeeReader(f, temp))
	if err == nil {
		err = temp.Chmod(0o644) // it was made for this user alone
	}
	if err == nil {
		err = temp.Sync()
	}
	return err
}

// create gives a whole file its name, unless something has that name: a link is made or is not, while a rename would
// replace. On file systems without links the name is taken first.
func create(temp, name string) error {
	err := os.Link(temp, name)
	if err == nil || errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Rename(temp, name))
}

// compareFile compares what has the name already with the file.
func (p *publication) compareFile(name string) error {
	there := publication{file: name}
	if err := there.measure(); err != nil {
		return err
	}
	if there.result.SHA256 != p.result.SHA256 {
		return p.otherBytes(there.result.Size, there.result.SHA256)
	}
	p.result.Existed = true
	return nil
}
