// Package chart renders objects of Kubernetes.
//
// [Open] reads the Helm chart of the folder deploy/chart, and renders it as Helm does, without Helm: its engine would double the size of
// vllm-vcr. Tests compare the two. [Write] and [WriteFolder] write objects, those of captures too (internal/capture/deploy).
package chart
