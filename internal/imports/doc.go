// Package imports guards which room may import which. It has no code but tests.
package imports
