package vm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseKernelDepends(t *testing.T) {
	name, version, err := parseKernelDepends(`Package: linux-image-amd64
Source: linux-signed-amd64 (6.1.192+3)
Version: 6.1.192-3
Depends: linux-image-6.1.0-57-amd64 (= 6.1.192-3)
Description-en: Linux for 64-bit PCs (meta-package)
`)
	require.NoError(t, err)
	require.Equal(t, "linux-image-6.1.0-57-amd64", name)
	require.Equal(t, "6.1.192-3", version)

	_, _, err = parseKernelDepends("Package: linux-image-amd64\nDepends: linux-image-generic\n")
	require.ErrorContains(t, err, "depends on no linux-image of one version")
}

func TestPackagesSayWhy(t *testing.T) {
	for _, p := range packages {
		require.NotEmpty(t, p.why, p.name)
	}
}
