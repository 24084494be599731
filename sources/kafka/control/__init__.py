"""Requests to the brokers besides reading: metadata, leader epochs, group offsets."""
