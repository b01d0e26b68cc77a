// Package uobject is what the providers over the kernel's verbs share: the
// life and order of objects, errors that say why, and descriptors that wake.
package uobject
