"""What is inside an image, for those who ask by name: components, licences, what needs what."""
