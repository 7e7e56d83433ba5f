// Package kube has the part of Kubernetes' objects that captures are made of: the types that package deploy renders,
// quantities of resources, and the rules for names. It spares the main binary the libraries of Kubernetes; only package
// cluster, which talks to an API server, imports those. Its tests compare it with them.
package kube
