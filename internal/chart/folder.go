package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// folderMark is the first line of the kustomization of a folder that this package wrote.
const folderMark = "# Written by vllm-vcr deploy render, which replaces this folder.\n"

// WriteFolder writes a file for each object, and a kustomization of them, to a folder. The folder appears when it is whole. It must not exist, be
// empty, or be one that WriteFolder wrote, which is replaced.
func WriteFolder(folder string, objects []any) error {
	if err := replaceable(folder); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(folder)), ".vllm-vcr-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	made := filepath.Join(temp, "new")
	if err := writeFiles(made, objects); err != nil {
		return err
	}
	if err := os.Rename(folder, filepath.Join(temp, "old")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(made, folder)
}

func replaceable(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	list, _ := os.ReadFile(filepath.Join(folder, "kustomization.yaml"))
	if len(entries) > 0 && !bytes.HasPrefix(list, []byte(folderMark)) {
		return fmt.Errorf("%s: it has files that vllm-vcr did not write: name another folder, or remove it", folder)
	}
	return nil
}

func writeFiles(folder string, objects []any) error {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	var names []string
	for _, object := range objects {
		plain, err := Plain(object)
		if err != nil {
			return err
		}
		name := strings.ToLower(fmt.Sprintf("%s-%s.yaml", plain["kind"], plain["metadata"].(map[string]any)["name"]))
		names = append(names, name)
		text, err := yaml.Marshal(plain)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	list, err := yaml.Marshal(map[string]any{"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "kustomization.yaml"), append([]byte(folderMark), list...), 0o644)
}

// Namespace is a namespace in which only pods with the restricted security run.
func Namespace(name string) any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}},
	}
}
