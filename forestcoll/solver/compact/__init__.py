"""Compact forests: a few trees and the symmetries whose images of them are all others."""
