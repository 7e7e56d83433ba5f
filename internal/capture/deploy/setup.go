package deploy

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/vllm-vcr/conformance/internal/chart"
)

// Setup reads what a cluster needs before the first capture: the objects in the files that the kustomization of a folder
// names, in its order.
func Setup(fsys fs.FS, folder string) ([]any, error) {
	list := path.Join(folder, "kustomization.yaml")
	text, err := fs.ReadFile(fsys, list)
	if err != nil {
		return nil, err
	}
	var kustomization struct{ Resources []string }
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		return nil, fmt.Errorf("%s: %w", list, err)
	}
	var all []any
	for _, name := range kustomization.Resources {
		file := path.Join(folder, name)
		text, err := fs.ReadFile(fsys, file)
		if err != nil {
			return nil, err
		}
		objects, err := chart.Documents(file, text)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: names no objects", list)
	}
	return all, nil
}

// QuotaOf is the quota of the cluster queue among the objects of [Setup].
func QuotaOf(objects []any) (Quota, error) {
	at := slices.IndexFunc(objects, func(o any) bool {
		object, ok := o.(map[string]any)
		return ok && object["kind"] == clusterQueueKind
	})
	if at < 0 {
		return Quota{}, fmt.Errorf("there is no %s", clusterQueueKind)
	}
	text, err := json.Marshal(objects[at])
	if err != nil {
		return Quota{}, err
	}
	return ReadQuota(clusterQueueKind, text)
}
